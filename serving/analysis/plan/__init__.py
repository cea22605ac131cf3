"""Machines that a load needs, checked by simulation, and their costs."""
