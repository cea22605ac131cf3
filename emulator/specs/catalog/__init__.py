"""Data of chips and systems, one file per family, each figure with its source."""
