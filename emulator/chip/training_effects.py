"""What a chip that trains answers to a command: exactly one effect each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDispatch:
    """Send `hidden` [tokens, hidden] to experts `chosen` [tokens, k] (global ids), whose outputs
    count `weights` [tokens, k].
    """

    layer: int
    hidden: F32
    chosen: NDArray[np.int64]
    weights: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSums:
    """The weighed sums [rows, hidden] over this chip's experts of each row that was sent."""

    layer: int
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientDispatch:
    """Send the loss's gradient by the outcome of `layer`, `rows` [tokens, hidden], back to the
    experts that the tokens went to.
    """

    layer: int
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGradients:
    """The loss's gradients by what this chip's experts read, `rows` [rows, hidden], and by the
    weight of each pair, `weights` [pairs].
    """

    layer: int
    rows: F32
    weights: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A micro-batch is through, and more of the step follow, or it was an evaluation.

    `loss_sum` is the nats of the `counted` tokens that had a target; `balance` is the coefficient
    times this chip's part in the load-balancing loss, all layers added up; 0 for an evaluation.
    """

    loss_sum: float
    counted: int
    balance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """The step's last micro-batch is through: this chip's gradients of the dense weights, flat, and
    the squared norm of its experts' gradients.
    """

    scored: Scored
    dense: F32
    experts_squared_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStateRead:
    """Weights and the two moments, each flat; the dense ones are empty where they were not asked
    for.
    """

    dense: F32
    dense_first: F32
    dense_second: F32
    experts: F32
    experts_first: F32
    experts_second: F32


TrainingEffect = (
    TrainingDispatch
    | ExpertSums
    | GradientDispatch
    | ExpertGradients
    | Scored
    | Gradients
    | TrainingStateRead
)
