"""A percentile that is one of the samples, so that a p99 within a limit means 99 % within it."""

import numpy as np
from numpy.typing import NDArray


def percentile(samples: NDArray[np.float64] | NDArray[np.int64], q: float) -> float:
    """The smallest sample that q percent of them do not exceed; of at least one sample."""
    return float(np.percentile(samples, q, method="inverted_cdf"))
