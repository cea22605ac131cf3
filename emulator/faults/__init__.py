"""Faults: survival, recovery, and seeded plans of them."""
