"""A day or week of a machine whose chips serve and train by turns, in virtual time."""
