"""A running server: gateway, control service, console, day and night, training."""
