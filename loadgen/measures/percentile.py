"""The percentile that a limit is held against: one of the samples.

A p99 within a limit then means that 99 % of the samples are. `intervals` interpolates instead, as
numpy does by default.
"""

import numpy as np

from loadgen.records.arrays import Float64s, Int64s


def percentile(samples: Float64s | Int64s, q: float) -> float:
    """The smallest sample that q percent do not exceed; of at least one sample."""
    return float(np.percentile(samples, q, method="inverted_cdf"))
