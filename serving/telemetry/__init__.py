"""What the engine says of itself: each metric defined once, and the snapshot they are set from."""
