"""From results to figures. Pure."""
