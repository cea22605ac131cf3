"""How many machines a load needs, seen to meet its target, and what that costs."""
