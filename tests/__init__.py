"""One package, so that a folder below it can be one too: `tests.deploy`, not `deploy`."""
