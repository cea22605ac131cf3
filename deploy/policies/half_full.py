"""A policy of day and night in ten lines: serving groups stay half full, by the last hour."""

import math

from serving.policy.day_night.observation import Observation


def half_full(seen: Observation) -> int:
    """Groups that are to serve; the others train."""
    last_hour = seen.history.requests_per_s[-12:]  # of five minutes each
    most_per_s: float = max([seen.load_per_s, *last_hour])
    return math.ceil(most_per_s / (0.5 * seen.capacity_per_group_per_s))
