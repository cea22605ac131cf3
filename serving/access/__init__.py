"""Who somebody is: keys, hashed at rest, and the certificates of a server."""
