"""Samples summed up: exact percentiles, mean and spread, each with its interval."""

from collections.abc import Mapping

import numpy as np

from loadgen.measures.intervals import mean_estimate, percentile_estimate
from loadgen.measures.run_measures import PERCENTILES, Distribution
from loadgen.measures.samples import Samples


def distribution_of(samples: Samples) -> Distribution:
    """Sum up at least one sample; raises ValueError for one that is not a finite number."""
    if not np.isfinite(samples.values).all():
        raise ValueError("a sample is not a finite number")
    ordered = np.sort(samples.values)
    return Distribution(
        samples=len(samples),
        mean=mean_estimate(samples),
        deviation=float(ordered.std()),
        least=float(ordered[0]),
        most=float(ordered[-1]),
        percentiles={each: percentile_estimate(samples, ordered, each) for each in PERCENTILES},
    )


def distributions_of(found: Mapping[str, Samples]) -> Mapping[str, Distribution]:
    """Sum up each of `samples_of`."""
    return {name: distribution_of(samples) for name, samples in found.items()}
