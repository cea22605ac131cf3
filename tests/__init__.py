"""A package, so that folders below can be packages too: `tests.deploy`, not `deploy`."""
