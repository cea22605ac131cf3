"""The only Ray: one actor per chip, and the channel that carries step data."""
