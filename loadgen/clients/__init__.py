"""The ways to reach a server: one file per protocol, all behind `client.RequestClient`."""
