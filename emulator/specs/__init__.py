"""Data types and the catalog: chips, systems, models and batches, each figure with its source."""
