"""Authentication: keys, hashed at rest, and the certificates of a server."""
