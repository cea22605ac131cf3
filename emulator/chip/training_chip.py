"""One training chip as a pure state machine: a command in, one effect out.

It takes its own sequences through the dense weights, of which it has all, and applies its experts
to any rows sent. No clock, no sockets, no other chips.

| state | command | answers | next |
|---|---|---|---|
| idle | `BeginTraining` | `TrainingDispatch(0)` | forward 0 |
| forward i | `CombineSums(i)` | `TrainingDispatch(i + 1)` | forward i + 1 |
| last forward | `CombineSums`: the loss, and back | `GradientDispatch(last)` | backward last |
| last forward | `CombineSums` of an evaluation: the loss | `Scored` | idle |
| backward i | `CombineGradients(i)` | `GradientDispatch(i - 1)` | backward i - 1 |
| backward 0 | `CombineGradients(0)`, more micro-batches | `Scored` | idle |
| backward 0 | `CombineGradients(0)`, the last one | `Gradients` | summed |
| summed | `ApplyGradients`: the optimizer's step | `CommandDone` | idle |
| forward i | `TrainExperts(i)` | `ExpertSums(i)` | the same |
| backward i | `TrainExpertsBackward(i)` | `ExpertGradients(i)` | the same |
| any | `SendTrainingState` | `TrainingStateRead` | the same |
"""

from typing import Final

import numpy as np

from emulator.arrays import Float32s
from emulator.chip.effects import CommandDone
from emulator.chip.expert_work import ExpertWork
from emulator.chip.training_commands import (
    ApplyGradients,
    BeginTraining,
    CombineGradients,
    CombineSums,
    SendTrainingState,
    TrainExperts,
    TrainExpertsBackward,
    TrainingCommand,
)
from emulator.chip.training_effects import (
    ExpertGradients,
    ExpertSums,
    GradientDispatch,
    Gradients,
    Scored,
    TrainingDispatch,
    TrainingEffect,
)
from emulator.chip.training_weights import TrainingWeights
from emulator.compute.adamw import squared_norm
from emulator.compute.causal_attention import BatchShape
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import Parameters
from emulator.compute.training_attention import (
    AttentionTape,
    attend_backward,
    attend_forward,
    embed,
    embed_backward,
)
from emulator.compute.training_loss import head
from emulator.compute.training_router import RouterTape, route_backward, route_forward

_IDLE: Final = "idle"
_FORWARD: Final = "forward"
_BACKWARD: Final = "backward"
_SUMMED: Final = "summed"

NOT_ASKED: Final = np.zeros(0, dtype=np.float32)


class _Layer:
    __slots__ = ("attention", "router")

    def __init__(self, attention: AttentionTape, router: RouterTape) -> None:
        self.attention = attention
        self.router = router


class _Micro:
    """The micro-batch in progress, from `BeginTraining` to its answer."""

    def __init__(self, command: BeginTraining) -> None:
        self.command = command
        sequences, length = command.tokens.shape
        self.shape = BatchShape(sequences=sequences, length=length)
        self.tokens = command.tokens.ravel()
        self.layers: list[_Layer] = []
        self.grad_x = NOT_ASKED  # [tokens, hidden], by the outcome of the layer in turn
        self.loss_sum = 0.0
        self.counted = 0
        self.balance = 0.0


class TrainingChip:
    """A chip with loaded dense weights and experts, and their moments.

    The same commands give the same bits: every sum has a fixed order.
    """

    def __init__(self, weights: TrainingWeights, precision: Precision) -> None:
        self._weights = weights
        self._precision = precision
        self._layers = weights.dense.layout.architecture.layers
        self._dense_grads = Parameters.zeros(weights.dense.layout)
        self._expert_grads = Parameters.zeros(weights.experts.layout)
        self._expert_work: dict[int, ExpertWork] = {}  # by layer of the micro-batch
        self._micro: _Micro | None = None
        self._state = _IDLE

    def handle(self, command: TrainingCommand) -> TrainingEffect | CommandDone:
        """Carry out `command`; returns its effect."""
        match command:
            case BeginTraining():
                return self._begin(command)
            case CombineSums():
                return self._combine(command)
            case CombineGradients():
                return self._combine_gradients(command)
            case TrainExperts():
                return self._train_experts(command)
            case TrainExpertsBackward():
                return self._train_experts_backward(command)
            case ApplyGradients():
                return self._apply(command)
            case SendTrainingState():
                return self._weights.read(dense=command.dense)
            case _:
                raise AssertionError(f"a training chip does not handle {type(command).__name__}")

    def _begin(self, command: BeginTraining) -> TrainingDispatch:
        assert self._state == _IDLE, f"a micro-batch began while {self._state}"
        self._micro = _Micro(command)
        self._state = _FORWARD
        x = embed(self._weights.dense, self._micro.tokens, self._precision)
        return self._enter_layer(self._micro, x)

    def _enter_layer(self, micro: _Micro, x: Float32s) -> TrainingDispatch:
        layer, dense = len(micro.layers), self._weights.dense
        attention = attend_forward(dense, layer, x, micro.shape, self._precision)
        router = route_forward(dense, layer, attention.residual, self._precision)
        micro.layers.append(_Layer(attention, router))
        return TrainingDispatch(
            layer=layer, hidden=router.hidden, chosen=router.chosen, weights=router.weights
        )

    def _combine(self, command: CombineSums) -> TrainingDispatch | GradientDispatch | Scored:
        micro = self._running(_FORWARD)
        assert command.layer == len(micro.layers) - 1, f"sums of layer {command.layer} came late"
        x = micro.layers[-1].attention.residual + command.rows
        if len(micro.layers) < self._layers:
            return self._enter_layer(micro, x)
        return self._score(micro, x)

    def _score(self, micro: _Micro, x: Float32s) -> GradientDispatch | Scored:
        evaluates = micro.command.evaluates
        micro.loss_sum, micro.counted, grad_x = head(
            self._weights.dense,
            None if evaluates else self._dense_grads,
            x,
            micro.command.targets.ravel(),
            micro.command.loss_scale,
            self._precision,
        )
        if grad_x is None:
            return self._end(micro, _IDLE)
        self._state = _BACKWARD
        return self._go_back(micro, grad_x)

    def _go_back(self, micro: _Micro, grad_x: Float32s) -> GradientDispatch:
        micro.grad_x = grad_x
        return GradientDispatch(layer=len(micro.layers) - 1, rows=grad_x)

    def _combine_gradients(
        self, command: CombineGradients
    ) -> GradientDispatch | Scored | Gradients:
        micro = self._running(_BACKWARD)
        layer = len(micro.layers) - 1
        assert command.layer == layer, f"gradients of layer {command.layer} came in layer {layer}"
        dense, tape = self._weights.dense, micro.layers.pop()
        tape.router.grad_weights = command.weights
        mean = tape.router.probabilities.sum(axis=0, dtype=np.float64)  # [experts], of the tokens
        micro.balance += command.balance_scale * float(np.dot(command.expert_share, mean))
        residual = route_backward(
            dense,
            self._dense_grads,
            layer,
            tape.router,
            micro.grad_x,
            command.rows,
            command.expert_share,
            command.balance_scale,
        )
        grad_x = attend_backward(dense, self._dense_grads, layer, tape.attention, residual)
        if layer:
            return self._go_back(micro, grad_x)
        embed_backward(dense, self._dense_grads, micro.tokens, grad_x)
        if not micro.command.ends_step:
            return self._end(micro, _IDLE)
        return Gradients(
            scored=self._end(micro, _SUMMED),
            dense=self._dense_grads.flat,
            experts_squared_norm=squared_norm(self._expert_grads.flat),
        )

    def _end(self, micro: _Micro, state: str) -> Scored:
        self._micro, self._state, self._expert_work = None, state, {}
        return Scored(loss_sum=micro.loss_sum, counted=micro.counted, balance=micro.balance)

    def _train_experts(self, command: TrainExperts) -> ExpertSums:
        work, sums = ExpertWork.forward(self._weights.experts, command, self._precision)
        self._expert_work[command.layer] = work
        return ExpertSums(layer=command.layer, rows=sums)

    def _train_experts_backward(self, command: TrainExpertsBackward) -> ExpertGradients:
        work = self._expert_work.pop(command.layer)
        rows, weights = work.backward(self._weights.experts, self._expert_grads, command.rows)
        return ExpertGradients(layer=command.layer, rows=rows, weights=weights)

    def _apply(self, command: ApplyGradients) -> CommandDone:
        assert self._state == _SUMMED, f"gradients were applied while {self._state}"
        dense = Parameters(self._dense_grads.layout, command.dense)
        self._weights.apply(dense, self._expert_grads, command.learning_rate, command.clip_factor)
        self._dense_grads.flat[:] = 0.0
        self._expert_grads.flat[:] = 0.0
        self._state = _IDLE
        return CommandDone()

    def _running(self, state: str) -> _Micro:
        assert self._state == state, f"the chip is {self._state}, not {state}"
        assert self._micro is not None
        return self._micro
