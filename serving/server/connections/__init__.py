"""Client connections of our ports: protocol, turns of calls, relay."""
