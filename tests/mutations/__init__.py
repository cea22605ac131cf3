"""Forty small faults, drawn by a seed, and whether `make test-fast` catches them."""
