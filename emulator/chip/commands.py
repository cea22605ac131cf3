"""Commands of a chip. Arrays are little-endian and C-contiguous; see the channel."""

from dataclasses import dataclass, field

import numpy as np

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.specs.step import RankStep

NO_TOKENS: Int32s = np.zeros(0, dtype=np.int32)
NO_BITMASK: Int32s = np.zeros((0, 0), dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStep:
    """Compute a rank's batch until its tokens or sums leave the chip.

    `grammar_bitmask`: [rows, ceil(vocab / 32)] int32, one row per `step.grammar_rows`; empty when
    no request is constrained. `sampled_tokens` [len(sampled_ids)] int32: the tokens that the rank's
    leading chip has drawn since the last command, one of each request; empty for the leader.
    """

    step: RankStep
    grammar_bitmask: Int32s
    sampled_ids: list[str] = field(default_factory=list)
    sampled_tokens: Int32s = field(default_factory=lambda: NO_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatStep:
    """Begin the step in progress again from its first layer; its outcome is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Continue with the attention of all chips of the rank: `rows` [all groups, tokens, hidden]
    float32, in the order of the head groups.
    """

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExperts:
    """Apply this chip's experts in `layer`.

    `rows` is [tokens, hidden] float32; `row_of_pair` [pairs] int64 is each pair's row, sorted by
    slot; `counts` [slots] int64 is the pairs of each slot.
    """

    layer: int
    rows: Float32s
    row_of_pair: Int64s
    counts: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """Finish `layer` with the experts' outputs `expert_rows` [tokens, k, hidden] float32, of all
    tokens of the rank.
    """

    layer: int
    expert_rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class SendExperts:
    """Read the weights in `slots` of `layer` out."""

    layer: int
    slots: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeExperts:
    """Write weights into `slots` of `layer`: `gate_up` [slots, hidden, 2 * intermediate] and
    `down` [slots, intermediate, hidden], float32.
    """

    layer: int
    slots: list[int]
    gate_up: Float32s
    down: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadExperts:
    """Read `experts` of `layer` from the checkpoint into `slots`, one each."""

    layer: int
    slots: list[int]
    experts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWeights:
    """Replace the weights by those of the checkpoint in `weights_dir`, of the same architecture;
    `experts` gives the expert of each slot, or EMPTY, for each layer.

    Answered by `CommandDone`, or by `NotLoaded`: the old weights stay. The rank has no request with
    tokens, since the KV cache is of the old weights.
    """

    weights_dir: str
    experts: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRank:
    """Forget the rank's requests, the step in progress and the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCondition:
    """Say how the chip's process is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Answer nothing from here on, and stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopChip:
    """End the chip's loop."""


Command = (
    BeginStep
    | RepeatStep
    | Reduce
    | RunExperts
    | Combine
    | SendExperts
    | TakeExperts
    | LoadExperts
    | LoadWeights
    | ResetRank
    | ReportCondition
    | Hang
    | StopChip
)
