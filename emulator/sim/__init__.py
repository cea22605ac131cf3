"""Emulated time: clocks that everything else receives as an argument."""
