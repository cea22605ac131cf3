"""Profiles of runs: timeline, utilisation and bottlenecks."""
