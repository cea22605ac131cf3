"""One chip: a pure state machine that turns commands into effects."""
