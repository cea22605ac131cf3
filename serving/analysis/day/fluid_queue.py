"""A walk's queue: a fluid, served in order, of which each part of an interval is a step.

A request's wait is what stands before it over what serves. Who waits for longer than a curve's
`patience_s` misses TTFT.
"""

import numpy as np
from numpy.typing import NDArray

from serving.analysis.day.partition_curve import GroupCurve

Float64s = NDArray[np.float64]


def queue_step(
    waiting: Float64s, arrived: Float64s | float, most: Float64s
) -> tuple[Float64s, Float64s, Float64s]:
    """Served, left, and of the arrived ones those that find a queue, where `most` can be served."""
    total = waiting + arrived
    served = np.minimum(total, most)
    left = total - served
    spare = np.where(most > arrived, most - arrived, 1.0)
    # The queue is gone when what is served beyond the arrivals has made up for it.
    ending = np.where((waiting > 0) & (most > arrived), np.minimum(1.0, waiting / spare), 0.0)
    return served, left, arrived * np.where(left > 0, 1.0, ending)


def late_share(first_s: Float64s, last_s: Float64s, patience_s: float) -> Float64s:
    """Of those that find a queue in a step: waits go in a straight line from one to the other."""
    beyond = np.maximum(last_s - patience_s, 0.0) - np.maximum(first_s - patience_s, 0.0)
    longer = last_s - first_s
    alike = np.where(first_s > patience_s, 1.0, 0.0)
    found: Float64s = np.divide(beyond, longer, out=alike, where=longer != 0.0)
    return found


def judged_rates(curve: GroupCurve, arrival_rates: Float64s, serving: Float64s | float) -> Float64s:
    """The rates of a group by whose shares those are judged who do not wait too long.

    Above saturation that is the capacity: their waits say the rest.
    """
    above = arrival_rates > curve.saturated_at(serving)
    rates: Float64s = np.where(above, curve.least_capacity_per_s, arrival_rates)
    return rates
