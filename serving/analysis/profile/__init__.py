"""The explorer: a run's timeline, and what its steps wait for."""
