"""The view of a run while it lasts."""
