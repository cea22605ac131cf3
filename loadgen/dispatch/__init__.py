"""Sends sessions when they are due, in one process or several, and hands on every result."""
