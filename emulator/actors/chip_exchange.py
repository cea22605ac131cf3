"""A chip's part of a step whose rows go through shared memory: it drives its own state machine.

The chip's effects are written where others read them, and answered by what others have written, in
the order in which the hub would do so (`ultraserver.lockstep`).
"""

from collections.abc import Callable

import numpy as np

from emulator.actors.barrier_kernel import BROKEN, DONE, LATE
from emulator.actors.exchange_kernel import UNPLACED, Work, add_sums, answer, collect
from emulator.actors.exchange_segment import LAYERS, ExchangeSegment, word_of_rank
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

_NO_ROWS = np.empty((0, 0), dtype=np.float32)
_NO_CHOICES = np.empty((0, 0), dtype=np.int64)
_NO_SUMS = np.empty(0, dtype=np.float32)


class _Broken(Exception):
    """The step was broken off."""


class ChipExchange:
    """Exchanges the rows of `chip`, the `tp_index`-th of `tp` that attend for its rank.

    `handle` is the chip's; `check_hub` raises HubGone when the engine's process is gone.
    """

    def __init__(
        self,
        segment: ExchangeSegment,
        *,
        chip: int,
        tp: int,
        tp_index: int,
        handle: Callable[[Command], Effect],
        check_hub: Callable[[], None],
    ) -> None:
        self._segment = segment
        self._chip = chip
        self._tp = tp
        self._tp_index = tp_index
        self._handle = handle
        self._check_hub = check_hub
        self._reduced = 0

    def run(self, command: Command) -> Effect:
        """Compute a step; raises HubGone when the engine's process is gone."""
        self._reduced = 0
        joins = isinstance(command, JoinStep)
        effect = CommandDone() if joins else self._handle(command)
        try:
            for layer in range(int(self._segment.areas.step[LAYERS])):
                effect = self._exchange(layer, self._reduce(effect))
            return self._reduce(effect)
        except _Broken:
            return effect if isinstance(effect, StepDone) else StepBroken()

    def _exchange(self, layer: int, effect: Effect) -> Effect:
        """Have a layer's rows computed, its own and others'; returns its next effect, if any."""
        dispatch = effect if isinstance(effect, Dispatch) else None
        _, rows, row_of_pair, counts, answer_of_pair = self._collect(layer, dispatch)
        out = _NO_ROWS
        if len(row_of_pair):
            work = RunExperts(layer=layer, rows=rows, row_of_pair=row_of_pair, counts=counts)
            done = self._handle(work)
            assert isinstance(done, ExpertRows), done
            out = np.ascontiguousarray(done.rows)
        waits = dispatch is not None
        areas, chip = self._segment.areas, self._chip
        outcome = answer(areas, chip, layer, out, answer_of_pair, True, waits)
        while self._is_late(outcome):
            outcome = answer(areas, chip, layer, out, answer_of_pair, False, waits)
        if dispatch is None:
            return effect
        first, tokens = self._tokens_of_rank()
        sizes = self._segment.sizes
        k = sizes.experts_per_token
        of_rank = areas.answers[first * k : (first + tokens) * k]
        return self._handle(
            Combine(layer=layer, expert_rows=of_rank.reshape(tokens, k, sizes.hidden))
        )

    def _collect(self, layer: int, dispatch: Dispatch | None) -> Work:
        areas, chip = self._segment.areas, self._chip
        hidden, chosen = _NO_ROWS, _NO_CHOICES
        if dispatch is not None:
            assert dispatch.layer == layer, (dispatch.layer, layer)
            hidden = np.ascontiguousarray(dispatch.hidden)
            chosen = np.ascontiguousarray(dispatch.chosen)
            own = areas.first_token[chip + 1] - areas.first_token[chip]
            assert len(hidden) == own, f"{len(hidden)} tokens to dispatch, and room for {own}"
        work = collect(areas, chip, layer, hidden, chosen, dispatch is not None)
        while self._is_late(work[0]):
            work = collect(areas, chip, layer, hidden, chosen, False)
        return work

    def _tokens_of_rank(self) -> tuple[int, int]:
        """The first of the rank's tokens, and how many they are."""
        first_token, lead = self._segment.areas.first_token, self._chip - self._tp_index
        first = int(first_token[lead])
        return first, int(first_token[lead + self._tp]) - first

    def _reduce(self, effect: Effect) -> Effect:
        """Exchange partial sums until the chip is done with them."""
        while isinstance(effect, PartialSums):
            areas, sizes = self._segment.areas, self._segment.sizes
            first, tokens = self._tokens_of_rank()
            start, size = first * sizes.groups * sizes.hidden, tokens * sizes.groups * sizes.hidden
            # Others of the rank may still read the last ones.
            sums = areas.sums[self._reduced % 2, start : start + size]
            own = size // self._tp
            mine = np.ascontiguousarray(effect.rows).reshape(-1)
            assert len(mine) == own, f"{len(mine)} elements of sums, and room for {own}"
            into = sums[self._tp_index * own : (self._tp_index + 1) * own]
            self._reduced += 1
            word = word_of_rank(self._chip - self._tp_index)
            target = self._tp * self._reduced
            outcome = add_sums(areas, self._chip, word, target, mine, into, True)
            while self._is_late(outcome):
                outcome = add_sums(areas, self._chip, word, target, _NO_SUMS, _NO_SUMS, False)
            rows = sums.reshape(sizes.groups, tokens, sizes.hidden)
            effect = self._handle(Reduce(layer=effect.layer, rows=rows))
        return effect

    def _is_late(self, outcome: int) -> bool:
        """Whether others are still to come; raises `_Broken` when they will not."""
        if outcome == BROKEN:
            raise _Broken
        assert outcome != UNPLACED, "tokens for an expert that no chip holds"
        if outcome == LATE:
            self._check_hub()
        else:
            assert outcome == DONE, outcome
        return outcome == LATE
