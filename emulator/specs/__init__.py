"""Shapes and catalog data: chips, systems, models and batches, each figure with its source."""
