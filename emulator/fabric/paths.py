"""The interface of the paths between chips that an exchange needs, of a fabric of any kind."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]


class Paths(Protocol):
    """The ways between positions.

    `reachable` is bool[positions, positions], `latency_ns` float64 of the same shape: a DMA's
    start-up and the hops; 0 to oneself and infinite where there is no way.
    """

    reachable: Bools
    latency_ns: Float64s

    def busy_ns(self, payload_bytes: Float64s) -> Float64s:
        """How long the busiest link at each position moves bytes, of payload[layers, s, r].

        float64[layers, positions or more]: what comes after the positions only passes bytes on.
        """
        ...
