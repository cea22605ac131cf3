"""What a chip can be told. Arrays are little-endian and C-contiguous; see the channel."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.specs.step import RankStep


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStep:
    """Compute a rank's batch up to its first dispatch.

    `grammar_bitmask` is [rows, ceil(vocab / 32)] int32, one row per `step.grammar_rows`; empty
    when no request is constrained.
    """

    step: RankStep
    grammar_bitmask: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExperts:
    """Apply this chip's experts in `layer`.

    `rows` is [tokens, hidden] float32; `row_of_pair` [pairs] int64 says which row each pair is,
    sorted by local expert; `counts` [local_experts] int64 is the pairs of each expert.
    """

    layer: int
    rows: NDArray[np.float32]
    row_of_pair: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """Finish `layer` with the experts' outputs `expert_rows` [tokens, k, hidden] float32."""

    layer: int
    expert_rows: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the chip's loop."""


Command = BeginStep | RunExperts | Combine | Stop
