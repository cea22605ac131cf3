"""Power as a pure function of how busy a chip is."""
