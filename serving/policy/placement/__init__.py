"""Where experts lie: counted load, balance, and the moves from one placement to the next; pure."""
