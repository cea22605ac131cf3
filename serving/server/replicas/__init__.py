"""Several engines as one service: processes, routing, replay, one address."""
