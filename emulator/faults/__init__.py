"""Faults: which of them the machine survives, how it recovers, and seeded plans of them."""
