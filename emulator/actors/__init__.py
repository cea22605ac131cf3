"""The only Ray: actors that each hold one chip, and the channel that carries step data to them."""
