"""Percentiles of samples, exact: every sample is kept and sorted, none is put into a bucket."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """The 50th, 90th and 99th percentile in the samples' unit; None if there was no sample."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, samples: Float64s) -> Self:
        """Of float64[samples], by linear interpolation between neighbours in rank.

        Raises ValueError for a sample that is not a finite number.
        """
        if not samples.size:
            return cls(p50=None, p90=None, p99=None)
        if not np.isfinite(samples).all():
            raise ValueError("a sample is not a finite number")
        p50, p90, p99 = np.percentile(samples, [50, 90, 99]).tolist()
        return cls(p50=p50, p90=p90, p99=p99)
