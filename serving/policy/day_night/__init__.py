"""When chips serve and when they train: the hand-over's table and the policies, all pure."""
