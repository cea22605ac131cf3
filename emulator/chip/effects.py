"""What a chip answers to a command: exactly one effect each, `Stop` excepted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.specs.step import RankOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The chip has loaded its shard and waits for commands."""

    chip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send the rank's `hidden` [tokens, hidden] to experts `chosen` [tokens, k] (global ids)."""

    layer: int
    hidden: NDArray[np.float32]
    chosen: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """Outputs [pairs, hidden] of this chip's experts, in the order they were sent."""

    layer: int
    rows: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """The rank's batch is computed and sampled."""

    output: RankOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A command could not be carried out; the chip's state is undefined from here on."""

    reason: str


Effect = Ready | Dispatch | ExpertRows | StepDone | Failed
