"""Client connections of our ports: their protocol, the turns of their calls, their relay."""
