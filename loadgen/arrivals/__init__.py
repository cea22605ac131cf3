"""Arrival times of sessions. Pure, seeded, without a clock."""
