"""The headline curve: tokens per second per megawatt against tokens per second per user."""
