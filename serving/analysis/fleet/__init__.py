"""A fleet over days: buildings of machines, their power caps, weather, failures and spares."""
