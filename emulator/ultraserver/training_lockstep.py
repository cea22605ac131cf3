"""One training step of all chips as a state machine, without I/O.

Every chip has its own sequences and all dense weights; each expert lies on one chip. All chips are
in the same layer at the same time.

| waits for | comes | goes out | then waits for |
|---|---|---|---|
| chips | TrainingDispatch (layer i) | TrainExperts | experts |
| experts | ExpertSums | CombineSums | chips |
| chips | GradientDispatch (layer i, from the last) | TrainExpertsBackward | experts |
| experts | ExpertGradients | CombineGradients | chips |
| chips | Scored (not the last, or an evaluation) | BeginTraining, or nothing | chips, the end |
| chips | Gradients (last micro-batch) | ApplyGradients: the sum in chip order | done |
| done | CommandDone | nothing | the end |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from emulator.chip.commands import Command
from emulator.chip.effects import CommandDone, Effect
from emulator.chip.training_commands import ApplyGradients, BeginTraining, TrainingCommand
from emulator.chip.training_effects import (
    ExpertGradients,
    ExpertSums,
    GradientDispatch,
    Gradients,
    Scored,
    TrainingDispatch,
    TrainingEffect,
)
from emulator.compute.adamw import clip_factor, squared_norm
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.lockstep import all_of
from emulator.ultraserver.training_exchange import TrainingExchange, summed_in_order

Micro = Mapping[int, BeginTraining]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization:
    """`clip_norm`: of all gradients together; `balance_coefficient`: of the load-balancing loss."""

    learning_rate: float
    clip_norm: float
    balance_coefficient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Result of a step or an evaluation.

    `loss`: nats a token over `counted` tokens; `balance`: the load-balancing loss times its
    coefficient, summed over layers; `gradient_norm`: before clipping; both 0 for an evaluation.
    `imbalance`: the busiest expert's tokens over the mean, in the worst layer.
    """

    loss: float
    counted: int
    balance: float
    gradient_norm: float
    imbalance: float


class TrainingLockstep:
    """A step over `micros`, a `BeginTraining` per chip in each; an evaluation without
    `optimization`.

    `result` is complete when `advance` has returned no more commands.
    """

    def __init__(
        self, micros: Sequence[Micro], experts: ExpertMap, optimization: Optimization | None
    ) -> None:
        self._micros = micros
        self._experts = experts
        self._optimization = optimization
        self._micro = 0
        self._layers: dict[int, TrainingExchange] = {}  # of the present micro-batch
        self._scored: list[Scored] = []
        self._gradient_norm = 0.0
        self._imbalance = 0.0

    def start(self) -> dict[int, Command | TrainingCommand]:
        """The first commands, by chip."""
        return self._begin()

    def _begin(self) -> dict[int, Command | TrainingCommand]:
        self._layers = {}
        if self._micro == len(self._micros):
            return {}
        evaluates = self._optimization is None
        ends_step = not evaluates and self._micro == len(self._micros) - 1
        commands = self._micros[self._micro]
        self._micro += 1
        return {
            chip: replace(command, evaluates=evaluates, ends_step=ends_step)
            for chip, command in commands.items()
        }

    def advance(
        self, replies: Mapping[int, Effect | TrainingEffect]
    ) -> dict[int, Command | TrainingCommand]:
        """Take all answers to the last commands; returns the next commands, none at the end."""
        first = next(iter(replies.values()))
        if isinstance(first, TrainingDispatch):
            exchange = TrainingExchange(all_of(TrainingDispatch, replies), self._experts)
            self._layers[exchange.layer] = exchange
            share = exchange.expert_share
            self._imbalance = max(self._imbalance, float(share.max() / share.mean()))
            return dict(exchange.work)
        if isinstance(first, ExpertSums):
            return dict(self._layers[first.layer].combine(all_of(ExpertSums, replies)))
        if isinstance(first, GradientDispatch):
            return dict(self._layers[first.layer].backward(all_of(GradientDispatch, replies)))
        if isinstance(first, ExpertGradients):
            return self._combine_gradients(all_of(ExpertGradients, replies))
        if isinstance(first, Scored):
            self._scored += all_of(Scored, replies).values()
            return self._begin()
        if isinstance(first, Gradients):
            return dict(self._apply(all_of(Gradients, replies)))
        assert isinstance(first, CommandDone), first
        return {}

    def _combine_gradients(
        self, answers: dict[int, ExpertGradients]
    ) -> dict[int, Command | TrainingCommand]:
        assert self._optimization is not None, "an evaluation has no gradients"
        layer = next(iter(answers.values())).layer
        exchange = self._layers[layer]
        # Every micro-batch is balanced for itself, and counts for its share of the step.
        scale = self._optimization.balance_coefficient / len(self._micros)
        of_probability = scale * len(exchange.expert_share) / exchange.tokens
        return dict(exchange.combine_gradients(answers, balance_scale=of_probability))

    def _apply(self, gradients: dict[int, Gradients]) -> dict[int, ApplyGradients]:
        assert self._optimization is not None, "an evaluation has no gradients"
        in_order = [gradients[chip] for chip in sorted(gradients)]
        self._scored += [each.scored for each in in_order]
        dense = summed_in_order([each.dense for each in in_order])
        squared = squared_norm(dense) + sum(each.experts_squared_norm for each in in_order)
        self._gradient_norm = math.sqrt(squared)
        command = ApplyGradients(
            dense=dense,
            learning_rate=self._optimization.learning_rate,
            clip_factor=clip_factor(self._gradient_norm, self._optimization.clip_norm),
        )
        return dict.fromkeys(gradients, command)

    def result(self) -> TrainingResult:
        """The result of the finished step."""
        counted = sum(each.counted for each in self._scored)
        return TrainingResult(
            loss=math.fsum(each.loss_sum for each in self._scored) / max(counted, 1),
            counted=counted,
            balance=math.fsum(each.balance for each in self._scored),
            gradient_norm=self._gradient_norm,
            imbalance=self._imbalance,
        )
