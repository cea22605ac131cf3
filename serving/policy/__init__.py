"""Decisions of serving, each a pure function in a file of its own."""
