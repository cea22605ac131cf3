"""What arrives: lengths, sessions and what they share, drawn or read from recorded traces."""
