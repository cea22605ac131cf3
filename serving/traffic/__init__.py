"""Requests over time, what serving them should be like, and how a run of them went."""
