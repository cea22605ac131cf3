"""Emulated time: clocks, passed as arguments."""
