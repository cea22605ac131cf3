"""What number formats do to a model's predictions, computed in this process."""
