"""Decisions of serving: pure functions, one concept a file."""
