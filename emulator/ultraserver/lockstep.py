"""One step of all ranks as a state machine: commands out, effects in, no I/O.

All ranks are in the same layer at the same time, as in real wide expert parallelism.

| waits for | comes | goes out | then waits for |
|---|---|---|---|
| ranks | PartialSums of every chip of a rank (tp > 1) | Reduce to each | ranks |
| ranks | Dispatch | RunExperts to the experts' chips | experts |
| experts | ExpertRows | Combine to the ranks' chips | ranks |
| ranks | StepDone | nothing | the end |

A layer that drafts comes after the last one, once or more often; ranks that guess no more end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np

from emulator.arrays import Int64s
from emulator.chip.commands import BeginStep, Command, Reduce, RepeatStep
from emulator.chip.effects import Dispatch, Effect, ExpertRows, PartialSums, StepDone
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.step import RankOutput
from emulator.ultraserver.exchange import ExpertMap, LayerExchange, finish_exchange, plan_exchange

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """Outputs of a step by rank, and its expert loads, None without dispatched tokens.

    `expert_pairs`, int64[layers, groups, experts]: tokens of each group that chose each expert.
    """

    outputs: dict[int, RankOutput]
    loads: ExpertLoads | None = None
    expert_pairs: Int64s | None = None


class Lockstep:
    """A step that begins with `begin`, a command per chip; `outputs` survive an interruption."""

    def __init__(
        self, begin: Mapping[int, BeginStep | RepeatStep], experts: ExpertMap, tp: int
    ) -> None:
        self.outputs: dict[int, RankOutput] = {}
        self._begin = begin
        self._experts = experts
        self._tp = tp
        self._exchange: LayerExchange | None = None
        self._layers: list[LayerExchange] = []

    def start(self) -> dict[int, Command]:
        """The first commands, by chip."""
        return dict(self._begin)

    def advance(self, replies: Mapping[int, Effect]) -> dict[int, Command]:
        """Take all answers to the last commands; returns the next ones, none at the end."""
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            return dict(finish_exchange(exchange, all_of(ExpertRows, replies), self._tp))
        self.note_done(replies)
        sums = {chip: r for chip, r in replies.items() if isinstance(r, PartialSums)}
        if sums:
            return self._reduce(sums)
        dispatches = {chip: r for chip, r in replies.items() if isinstance(r, Dispatch)}
        if not dispatches:
            return {}
        self._exchange = plan_exchange(dispatches, self._experts)
        self._layers.append(self._exchange)
        return dict(self._exchange.work)

    def note_done(self, replies: Mapping[int, Effect]) -> None:
        """Keep the outputs of leading chips, also of a step that broke off."""
        self.outputs.update(leading_outputs(replies, self._tp))

    def _reduce(self, sums: Mapping[int, PartialSums]) -> dict[int, Command]:
        """Send every chip of a rank all of its chips' partial sums, in group order."""
        commands: dict[int, Command] = {}
        for _, of_rank in groupby(sorted(sums), key=lambda chip: chip // self._tp):
            chips = list(of_rank)
            rows = np.concatenate([sums[chip].rows for chip in chips])
            command = Reduce(layer=sums[chips[0]].layer, rows=rows)
            commands.update(dict.fromkeys(chips, command))
        return commands

    @property
    def ran_all_layers(self) -> bool:
        """Whether every layer's experts have been computed."""
        own = self._experts.layers  # further ones draft
        computed = sum(each.layer < own for each in self._layers)
        return computed == own and (self._exchange is None or self._exchange.layer >= own)

    def result(self, outputs: dict[int, RankOutput]) -> StepResult:
        """The step's result with `outputs`; loads are of the layers that this attempt ran.

        Passes of a layer that drafts are left out: they are not of the model's layers.
        """
        layers = [layer for layer in self._layers if layer.layer < self._experts.layers]
        if not layers:
            return StepResult(outputs=outputs)
        loads = ExpertLoads(
            pairs=np.array([layer.pairs for layer in layers]),
            distinct=np.array([layer.distinct for layer in layers]),
            sent=np.array([layer.sent for layer in layers]),
        )
        expert_pairs = np.array([layer.expert_pairs for layer in layers])
        return StepResult(outputs=outputs, loads=loads, expert_pairs=expert_pairs)


def leading_outputs(replies: Mapping[int, Effect], tp: int) -> dict[int, RankOutput]:
    """What the first chips of ranks have sampled, by rank."""
    return {
        chip // tp: reply.output
        for chip, reply in replies.items()
        if isinstance(reply, StepDone) and chip % tp == 0
    }


def all_of(kind: type[Kind], replies: Mapping[int, object]) -> dict[int, Kind]:
    """The replies by chip, ascending; asserts that all are of one `kind`."""
    found: dict[int, Kind] = {}
    for chip, reply in sorted(replies.items()):
        assert isinstance(reply, kind), (chip, reply)
        found[chip] = reply
    return found


class UnfinishedStep:
    """A step in progress: ranks, finished outputs, and any attempt with all layers (`whole`)."""

    __slots__ = ("outputs", "ranks", "whole")

    def __init__(self, ranks: set[int]) -> None:
        self.ranks = ranks
        self.whole: StepResult | None = None
        self.outputs: dict[int, RankOutput] = {}


class Interrupted(Exception):
    """Chips that did not answer; `replies` are the others'."""

    def __init__(self, chips: tuple[int, ...], replies: dict[int, Effect]) -> None:
        super().__init__(chips)
        self.chips = chips
        self.replies = replies
