"""Answers of a training chip: exactly one effect per command."""

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
    """Weighted sums [rows, hidden] over this chip's experts of each row."""

    layer: int
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientDispatch:
    """Send the loss's gradient by the result of `layer`, `rows` [tokens, hidden], back to the
    tokens' experts.
    """

    layer: int
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGradients:
    """The loss's gradients by the experts' inputs, `rows` [rows, hidden], and by the weight of each
    pair, `weights` [pairs].
    """

    layer: int
    rows: F32
    weights: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A micro-batch is done, with more to follow in the step, or an evaluation.

    `loss_sum` is the nats of the `counted` tokens with a target; `balance` is the coefficient times
    this chip's part of the load-balancing loss, summed over layers; 0 for an evaluation.
    """

    loss_sum: float
    counted: int
    balance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """The step's last micro-batch is done: this chip's dense gradients, flat, and the squared norm
    of its experts' gradients.
    """

    scored: Scored
    dense: F32
    experts_squared_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStateRead:
    """Weights and the two moments, each flat; dense ones are empty unless asked for."""

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
