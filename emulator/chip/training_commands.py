"""Commands of a training chip. Arrays are little-endian and C-contiguous; see the channel.

`BeginTraining` begins each micro-batch of a step, and `ApplyGradients` ends the step. Experts' rows
travel weighted and summed: one row of a token per chip with some of its experts, as kernels for
wide expert parallelism do (DeepEP).
"""

from dataclasses import dataclass

from emulator.arrays import Float32s, Int32s, Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTraining:
    """Take `tokens` [sequences, length] int32 through the model; `targets` are the next ones, -1
    skips.

    `loss_scale`: weight of a token's nats in the step's loss. `evaluates`: the loss alone.
    `ends_step`: gradients follow this micro-batch.
    """

    tokens: Int32s
    targets: Int32s
    loss_scale: float
    evaluates: bool = False
    ends_step: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainExperts:
    """Apply this chip's experts in `layer`.

    `rows` [rows, hidden]; `row_of_pair` [pairs] int64: each pair's row, sorted by slot; `counts`
    [slots] int64: pairs per slot; `weights` [pairs]: each pair's weight in its row's sum.
    """

    layer: int
    rows: Float32s
    row_of_pair: Int64s
    counts: Int64s
    weights: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineSums:
    """Finish `layer` with the experts' weighted sums [tokens, hidden]."""

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainExpertsBackward:
    """Backward pass of this chip's experts in `layer`: `rows` [rows, hidden] are the loss's
    gradient by the sums, in token order.
    """

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineGradients:
    """Backward pass of the rest of `layer`: the loss's gradient by the experts' inputs, `rows`
    [tokens, hidden], and by the experts' weights, `weights` [tokens, k].

    `expert_share` [experts]: pairs per expert over tokens, of all chips in this micro-batch;
    `balance_scale`: the load-balancing loss's derivative by one token's probability of an expert,
    over its share.
    """

    layer: int
    rows: Float32s
    weights: Float32s
    expert_share: Float32s
    balance_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyGradients:
    """Take the optimizer's step with all chips' dense gradients summed, clipped by the factor."""

    dense: Float32s
    learning_rate: float
    clip_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTrainingState:
    """Send weights and moments: the experts', and, if `dense`, the dense ones."""

    dense: bool


TrainingCommand = (
    BeginTraining
    | TrainExperts
    | CombineSums
    | TrainExpertsBackward
    | CombineGradients
    | ApplyGradients
    | SendTrainingState
)
