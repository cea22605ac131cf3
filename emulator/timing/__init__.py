"""Time as a pure function: flops and bytes of a step, counted, then divided by engine rates."""
