"""The rate at a moment, by definition: the reference of sums and schedules."""

import numpy as np

from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.arrivals.rate_shape import RateShape, Sine
from loadgen.records.arrays import Float64s


def rate_at(shape: RateShape, time_s: Float64s) -> Float64s:
    """Arrivals per second at `time_s`; at a jump, the later rate."""
    if isinstance(shape, Sine):
        angle = 2 * np.pi * time_s / shape.period_s
        return shape.mean_per_s + shape.amplitude_per_s * np.sin(angle)
    assert isinstance(shape, PiecewiseLinear)
    return shape.at(time_s)
