"""What the hardware says of itself, as a page that Prometheus reads."""
