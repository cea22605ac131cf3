"""Commands of a chip. Arrays are little-endian and C-contiguous; see the channel.

The layer of a command to or about experts counts the layers with experts alone.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.compute.exchange_sizes import ExchangeSizes
from emulator.specs.step import RankStep

NO_TOKENS: Int32s = np.zeros(0, dtype=np.int32)
NO_BITMASK: Int32s = np.zeros((0, 0), dtype=np.int32)


class BeginStep(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Compute a rank's batch until its tokens or sums leave the chip.

    `grammar_bitmask`: [rows, ceil(vocab / 32)] int32, one row per `step.grammar_rows`; empty
    without constraints. `sampled_tokens`: [len(sampled_ids)] int32, of each request in order,
    drawn by the rank's leading chip since the last command; empty for the leader.
    """

    step: RankStep
    grammar_bitmask: Int32s
    sampled_ids: list[str] = []
    sampled_tokens: Int32s = msgspec.field(default_factory=lambda: NO_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatStep:
    """Restart the step in progress from its first layer; its outcome is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStep:
    """Compute experts' rows in a step in which the chip has no tokens of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinExchange(ExchangeSizes):
    """Exchange rows with the other chips through the memory in the file at `path` from now on.

    `inode` tells the file from a later one.
    """

    path: str = ""
    inode: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Continue with a rank's partial sums [all groups, tokens, hidden] float32, in group order."""

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExperts:
    """Apply this chip's experts in `layer`.

    `rows` [tokens, hidden] float32; `row_of_pair` [pairs] int64: each pair's row, sorted by slot;
    `counts` [slots] int64: pairs per slot.
    """

    layer: int
    rows: Float32s
    row_of_pair: Int64s
    counts: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """Finish `layer` with the rank's `expert_rows` [tokens, k, hidden] float32."""

    layer: int
    expert_rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class SendExperts:
    """Read out the weights in `slots` of `layer`."""

    layer: int
    slots: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeExperts:
    """Write weights into `slots` of `layer`: `gate_up` [slots, hidden, 2 * intermediate], `down`
    [slots, intermediate, hidden], `biases` [slots, biases of an expert], float32; of the last layer
    with those of the layer that drafts, if any, in further columns.
    """

    layer: int
    slots: list[int]
    gate_up: Float32s
    down: Float32s
    biases: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class SendKv:
    """Read out `blocks` of the KV cache."""

    blocks: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeKv:
    """Write `keys` and `values`, as `KvBlocks` has them, into `blocks` of the KV cache."""

    blocks: list[int]
    keys: Float32s
    values: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadExperts:
    """Read `experts` of `layer` from the checkpoint into `slots`, one each; with the last layer's
    those of the layer that drafts, if any.
    """

    layer: int
    slots: list[int]
    experts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWeights:
    """Load another checkpoint of the same architecture; `experts`: each layer's expert by slot, or
    EMPTY.

    Answered by `CommandDone`, or by `NotLoaded`: the old weights stay. No request of the rank has
    tokens, since the KV cache is of the old weights.
    """

    weights_dir: str
    experts: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRank:
    """Forget the rank's requests, the step in progress and the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCondition:
    """Report the state of the chip's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Stop answering, without ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopChip:
    """End the chip's loop."""


Command = (
    BeginStep
    | RepeatStep
    | JoinStep
    | JoinExchange
    | Reduce
    | RunExperts
    | Combine
    | SendExperts
    | TakeExperts
    | SendKv
    | TakeKv
    | LoadExperts
    | LoadWeights
    | ResetRank
    | ReportCondition
    | Hang
    | StopChip
)
