"""Sends sessions when due, in one process or several, and reports every result."""
