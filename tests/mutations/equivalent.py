"""Faults without an observable effect, each with the reason: they are not drawn."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EQUIVALENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "365a4686": "DemandHistory.of: the fraction of a double of 0.5 or more is a multiple of "
        "2^-53, and 1e-3 is none, so > and >= agree; below 0.5 the step before has refused it",
        "687ebac0": "_JobBytes.collectives: a maximum is the same with its arguments swapped",
    }
)
"""By a fault's name."""
