"""Permits of one admission for several API processes, over a socket of the server's own."""
