"""What a chip that trains can be told. Arrays are little-endian and C-contiguous; see the channel.

A step has one or more micro-batches; `BeginTraining` begins each, and `ApplyGradients` ends the
step. Experts' rows travel weighed and added up: one row of a token for each chip that has some of
its experts, forward and backward, as kernels for wide expert parallelism do (DeepEP).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTraining:
    """Take `tokens` [sequences, length] int32 through the model; `targets`, of the same shape, are
    what follows each, or -1 where that is not asked.

    `loss_scale` is what one token's nats count for in the step's loss. `evaluates` asks for the
    loss alone. `ends_step` says that the gradients go out after this micro-batch.
    """

    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]
    loss_scale: float
    evaluates: bool = False
    ends_step: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainExperts:
    """Apply this chip's experts in `layer`.

    `rows` [rows, hidden]; `row_of_pair` [pairs] int64 says which row each pair is, sorted by slot;
    `counts` [slots] int64 is the pairs of each slot; `weights` [pairs] what each pair counts for in
    its row's sum.
    """

    layer: int
    rows: F32
    row_of_pair: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineSums:
    """Finish `layer` with the experts' weighed sums `rows` [tokens, hidden]."""

    layer: int
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainExpertsBackward:
    """Go back through this chip's experts in `layer`: `rows` [rows, hidden] are the loss's gradient
    by the sums, in the order in which their tokens came.
    """

    layer: int
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineGradients:
    """Go back through the rest of `layer`: the loss's gradient by what the experts read, `rows`
    [tokens, hidden], and by the experts' weights, `weights` [tokens, k].

    `expert_share` [experts] is the pairs of each expert over the tokens, of all chips in this
    micro-batch; `balance_scale` is the load-balancing loss's derivative by one token's probability
    of an expert, over its share.
    """

    layer: int
    rows: F32
    weights: F32
    expert_share: F32
    balance_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyGradients:
    """Take the optimizer's step: all chips' gradients of the dense weights, added up, and the
    factor that clips all gradients.
    """

    dense: F32
    learning_rate: float
    clip_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTrainingState:
    """Read weights and moments out: those of the experts, and, if `dense`, the dense ones."""

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
