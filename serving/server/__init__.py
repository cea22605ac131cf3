"""A running server: gateway, control service, console, day and night, and the training job."""
