"""Bucket bounds of vLLM's time histograms, fine enough for decode steps of a millisecond.

vLLM's own bounds stay, for dashboards, alerts and load tools that name one.
"""

from collections.abc import Mapping
from typing import Final

from vllm.v1.metrics.buckets import BucketFamilyKey, histogram_buckets

_STEPS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.00075),
    *(0.001, 0.00125, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.0075),
)
"""A decode step of a large model on 144 chips takes 1 to 20 ms; of a small one 0.1 ms."""

_ADDED_S: Final[Mapping[BucketFamilyKey, tuple[float, ...]]] = {
    "inter_token_latency": (*_STEPS_S, 0.015, 0.02, 0.03, 0.04),
    "time_to_first_token": (0.0002, 0.0005, 0.002, 0.003, 0.0075, 0.015, 0.03, 0.15, 0.2),
    "request_latency": (
        *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    ),
}


def fine_buckets(given: Mapping[str, list[float]] | None) -> dict[str, list[float]]:
    """Bounds in seconds by vLLM's bucket family: the user's, else ours."""
    fine = {
        family: sorted({*added, *histogram_buckets(family)}) for family, added in _ADDED_S.items()
    }
    return fine | dict(given or {})
