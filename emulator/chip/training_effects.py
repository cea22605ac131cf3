"""Answers of a training chip: exactly one effect per command."""

from dataclasses import dataclass

from emulator.arrays import Float32s, Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDispatch:
    """Send `hidden` [tokens, hidden] to experts `chosen` (global) with `weights` [tokens, k]."""

    layer: int
    hidden: Float32s
    chosen: Int64s
    weights: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSums:
    """Weighted sums [rows, hidden] over this chip's experts of each row."""

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientDispatch:
    """Send the gradient by the result of `layer`, `rows` [tokens, hidden], back to its experts."""

    layer: int
    rows: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGradients:
    """The loss's gradients by expert inputs, `rows` [rows, hidden], and pair `weights` [pairs]."""

    layer: int
    rows: Float32s
    weights: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """End of a micro-batch, with more to follow in the step, or of an evaluation.

    `loss_sum`: nats of the `counted` tokens with a target; `balance`: this chip's part of the
    load-balancing loss times its coefficient, summed over layers; 0 for an evaluation.
    """

    loss_sum: float
    counted: int
    balance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """End of the step: this chip's flat dense gradients, and the squared norm of its experts'."""

    scored: Scored
    dense: Float32s
    experts_squared_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStateRead:
    """Weights and two moments, each flat; dense ones are empty unless requested."""

    dense: Float32s
    dense_first: Float32s
    dense_second: Float32s
    experts: Float32s
    experts_first: Float32s
    experts_second: Float32s


TrainingEffect = (
    TrainingDispatch
    | ExpertSums
    | GradientDispatch
    | ExpertGradients
    | Scored
    | Gradients
    | TrainingStateRead
)
