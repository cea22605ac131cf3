"""A chip's part of a step whose rows go through shared memory: it drives its own state machine.

The chip's effects are written where others read them, and answered by what others have written, in
the order in which the hub would do so (`ultraserver.lockstep`); layers that kernels compute are one
call, which waits inside.
"""

from typing import Final, Protocol

import numpy as np

from emulator.actors.barrier_kernel import BROKEN, DONE, GONE
from emulator.actors.channel import HubGone
from emulator.actors.exchange_kernel import UNPLACED, RankPlace
from emulator.actors.exchange_segment import LAYERS, ExchangeSegment
from emulator.actors.layer_exchange import add_sums, answer, collect, run_experts, run_layers
from emulator.arrays import Float32s, Int64s
from emulator.chip.chip import RunLayers
from emulator.chip.commands import Combine, Command, JoinStep, Reduce, RunExperts
from emulator.chip.effects import (
    CommandDone,
    Dispatch,
    Effect,
    ExpertRows,
    PartialSums,
    StepBroken,
    StepDone,
)
from emulator.compute.attention_kernel import Places, Spans
from emulator.compute.layer_table import LayerTable
from emulator.compute.paged_kv import PagedKv

_NO_ROWS: Final = np.empty((0, 0), dtype=np.float32)
_NO_CHOICES: Final = np.empty((0, 0), dtype=np.int64)


class ExchangingChip(Protocol):
    """What a `Chip` does in an exchange."""

    table: LayerTable | None
    run_layers: RunLayers | None

    def handle(self, command: Command) -> Effect:
        """Carry out `command`."""


class _Broken(Exception):
    """The step was broken off."""


class ChipExchange:
    """Exchanges the rows of `chip`, number `number`, the `tp_index`-th of `tp` that attend for its
    rank. Waits end when the other end of the socket `hub` has closed; -1 is none.
    """

    def __init__(
        self,
        segment: ExchangeSegment,
        chip: ExchangingChip,
        *,
        number: int,
        tp: int,
        tp_index: int,
        hub: int,
    ) -> None:
        segment.watch(hub)
        self._segment = segment
        self._chip = chip
        self._number = number
        groups = segment.sizes.groups
        self._rank = RankPlace(number - tp_index, tp_index, tp, groups, 0)
        self._layer = 0
        chip.run_layers = self._run_layers

    def run(self, command: Command) -> Effect:
        """Compute a step; raises HubGone when the engine's process is gone."""
        self._layer, self._rank = 0, self._rank._replace(added=0)
        layers = int(self._segment.areas.step[LAYERS])
        effect: Effect = CommandDone()
        try:
            if not isinstance(command, JoinStep):
                effect = self._chip.handle(command)
            while True:
                if isinstance(effect, PartialSums):
                    effect = self._add_sums(effect)
                elif isinstance(effect, Dispatch):
                    effect = self._dispatch(effect)
                elif self._layer < layers:
                    self._run_experts()
                else:
                    return effect
        except _Broken:
            return effect if isinstance(effect, StepDone) else StepBroken()

    def _run_layers(
        self, x: Float32s, table: LayerTable, kv: PagedKv, places: Places, spans: Spans
    ) -> Float32s:
        at, rank = self._segment.handle, self._rank
        outcome, x = run_layers(at, rank, x, table, *kv.pools, places, spans)
        _check(outcome)
        self._layer = layers = len(table.arrays)
        self._rank = rank._replace(added=rank.added + layers)
        return x

    def _run_experts(self) -> None:
        """Compute the chip's experts in layers in which it has no tokens."""
        table = self._chip.table
        if table is None:
            self._exchange(_NO_ROWS, _NO_CHOICES, sends=False)
            return
        _check(run_experts(self._segment.handle, self._number, table))
        self._layer = len(table.arrays)

    def _dispatch(self, dispatch: Dispatch) -> Effect:
        """Have the chip's tokens computed, and compute what comes to it."""
        assert dispatch.layer == self._layer, (dispatch.layer, self._layer)
        areas, sizes, rank = self._segment.areas, self._segment.sizes, self._rank
        first, end = areas.first_token[[rank.lead, rank.lead + rank.chips]].tolist()
        self._exchange(dispatch.hidden, dispatch.chosen, sends=True)
        k = sizes.experts_per_token
        # [tokens, k, hidden]
        rows = areas.answers[first * k : end * k].reshape(end - first, k, sizes.hidden)
        return self._chip.handle(Combine(layer=dispatch.layer, expert_rows=rows))

    def _exchange(self, hidden: Float32s, chosen: Int64s, *, sends: bool) -> None:
        at, number, layer = self._segment.handle, self._number, self._layer
        hidden, chosen = np.ascontiguousarray(hidden), np.ascontiguousarray(chosen)
        outcome, rows, row_of_pair, counts, answer_of_pair = collect(
            at, number, layer, hidden, chosen, sends
        )
        _check(outcome)
        out = _NO_ROWS
        if len(row_of_pair):
            done = self._chip.handle(
                RunExperts(layer=layer, rows=rows, row_of_pair=row_of_pair, counts=counts)
            )
            assert isinstance(done, ExpertRows), done
            out = np.ascontiguousarray(done.rows)
        _check(answer(at, number, layer, out, answer_of_pair, sends))
        self._layer += 1

    def _add_sums(self, sums: PartialSums) -> Effect:
        mine = np.ascontiguousarray(sums.rows)
        outcome, rows = add_sums(self._segment.handle, self._rank, mine)
        _check(outcome)
        self._rank = self._rank._replace(added=self._rank.added + 1)
        return self._chip.handle(Reduce(layer=sums.layer, rows=rows))


def _check(outcome: int) -> None:
    """Raise `_Broken`, or HubGone, where those who were waited for did not come."""
    if outcome == BROKEN:
        raise _Broken
    if outcome == GONE:
        raise HubGone("the hub has closed the channel")
    assert outcome != UNPLACED, "tokens for an expert that no chip holds"
    assert outcome == DONE, outcome
