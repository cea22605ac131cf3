"""The types of control calls between the two processes of a server: frozen, plain, JSON."""
