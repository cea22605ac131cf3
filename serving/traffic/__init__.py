"""Traffic, its targets, and the record of serving it."""
