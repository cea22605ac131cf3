"""Connections that come to a port of ours: what they speak, whose turn it is, where they go."""
