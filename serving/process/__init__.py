"""Processes of a server: parents, signals and shutdown."""
