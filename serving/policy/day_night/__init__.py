"""Decides when chips serve and when they train: the hand-over's table and the policies. Pure."""
