"""A long run of one server under everything that clients and operators do to it."""
