"""Answers of a chip: one effect per command, but none to `JoinExchange`, `Hang` and `StopChip`.

The layer of an effect to or about experts counts the layers with experts alone.
"""

from dataclasses import dataclass, field

import msgspec

from emulator.arrays import Float32s, Int64s
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import RankOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipReady:
    """The chip has loaded its shard.

    `pid` and `thread` are on the machine whose Linux has boot id `boot`.
    """

    chip: int
    pid: int = field(default=0, compare=False)
    thread: int = field(default=0, compare=False)
    boot: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSums:
    """Rows [groups, tokens, hidden] of this chip's groups, to sum over the rank's chips: of
    attention, or of a dense network after it.
    """

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send this chip's share of the rank's tokens, in order, to experts.

    `hidden` [tokens, hidden]; `chosen` [tokens, k]: global expert ids.
    """

    layer: int
    hidden: Float32s
    chosen: Int64s


def dispatched_tokens(tokens: int, part: int, parts: int) -> slice:
    """Those of a rank's `tokens` that the `part`-th of its `parts` attending chips dispatches."""
    return slice(tokens * part // parts, tokens * (part + 1) // parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """Outputs [pairs, hidden] of this chip's experts, in the order of the input."""

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """Weights `gate_up` [slots, hidden, 2 * intermediate], `down` [slots, intermediate, hidden],
    and `biases` [slots, biases of an expert]; see `TakeExperts`.
    """

    layer: int
    gate_up: Float32s
    down: Float32s
    biases: Float32s


class StepDone(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The rank's batch is computed; only its leading chip's output has samples."""

    output: RankOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBroken:
    """The step was broken off while the chip waited for others; it can be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDone:
    """The command succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLoaded:
    """The weights could not be read; the old ones stay."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """CPU seconds of the chip's commands, its exchange of rows included; its process's proportional
    and resident size.
    """

    cpu_s: float
    pss_bytes: int
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFailed:
    """A command failed; the chip's state is undefined from here on."""

    reason: str


Effect = (
    ChipReady
    | PartialSums
    | Dispatch
    | ExpertRows
    | ExpertWeights
    | KvBlocks
    | StepDone
    | StepBroken
    | CommandDone
    | NotLoaded
    | Condition
    | ChipFailed
)
