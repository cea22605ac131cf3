"""Clients of a server: one file per protocol, all behind `client.RequestClient`."""
