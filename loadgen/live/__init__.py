"""What is seen while a run lasts."""
