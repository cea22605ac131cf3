"""Sends sessions when they are due, in one process or several, and reports every result."""
