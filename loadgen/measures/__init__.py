"""From results to figures: pure, so that any of them can be computed again."""
