"""What a step's time is made of, what bounds it, and what each assumption is worth."""
