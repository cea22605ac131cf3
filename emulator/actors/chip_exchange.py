"""A chip's part of a step whose rows go through shared memory: it drives its own state machine.

The chip's effects are written where others read them, and answered by what others have written, in
the order in which the hub would do so (`ultraserver.lockstep`).
"""

from collections.abc import Callable

import numpy as np

from emulator.actors.barrier_kernel import BROKEN, DONE, LATE
from emulator.actors.exchange_kernel import UNPLACED, add_sums, answer, collect
from emulator.actors.exchange_segment import LAYERS, ExchangeSegment, word_of_rank
from emulator.arrays import Float32s
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
        self._sizes = segment.sizes
        self._areas = segment.areas
        self._at = segment.handle
        self._chip = chip
        self._tp = tp
        self._tp_index = tp_index
        self._handle = handle
        self._check_hub = check_hub
        self._own_tokens = 0
        self._rank_sums: Float32s = (
            _NO_SUMS  # [2, elements], of which the last ones may still be read
        )
        self._rank_rows: Float32s = _NO_ROWS  # [tokens, k, hidden]
        self._reduced = 0

    def run(self, command: Command) -> Effect:
        """Compute a step; raises HubGone when the engine's process is gone."""
        effect = CommandDone() if isinstance(command, JoinStep) else self._begin(command)
        try:
            for layer in range(int(self._areas.step[LAYERS])):
                effect = self._reduce(effect)
                if isinstance(effect, Dispatch):
                    assert effect.layer == layer, (effect.layer, layer)
                    self._compute(layer, effect)
                    effect = self._handle(Combine(layer=layer, expert_rows=self._rank_rows))
                else:
                    self._compute(layer, None)
            return self._reduce(effect)
        except _Broken:
            return effect if isinstance(effect, StepDone) else StepBroken()

    def _begin(self, command: Command) -> Effect:
        """Find what is the rank's own in this step, and begin it."""
        areas, sizes = self._areas, self._sizes
        lead, k = self._chip - self._tp_index, sizes.experts_per_token
        first, end, mine, after = areas.first_token[
            [lead, lead + self._tp, self._chip, self._chip + 1]
        ].tolist()
        self._own_tokens = after - mine
        self._rank_rows = areas.answers[first * k : end * k].reshape(end - first, k, sizes.hidden)
        of_token = sizes.groups * sizes.hidden
        self._rank_sums = areas.sums[:, first * of_token : end * of_token]
        self._reduced = 0
        return self._handle(command)

    def _compute(self, layer: int, dispatch: Dispatch | None) -> None:
        """Have the chip's tokens computed, and compute what comes to it."""
        hidden, chosen, sends = _NO_ROWS, _NO_CHOICES, dispatch is not None
        if dispatch is not None:
            hidden = np.ascontiguousarray(dispatch.hidden)
            chosen = np.ascontiguousarray(dispatch.chosen)
            assert len(hidden) == self._own_tokens, (len(hidden), self._own_tokens)
        at, chip = self._at, self._chip
        work = collect(at, chip, layer, hidden, chosen, sends)
        while work[0] != DONE:
            self._wait_longer(work[0])
            work = collect(at, chip, layer, hidden, chosen, False)
        _, rows, row_of_pair, counts, answer_of_pair = work
        out = _NO_ROWS
        if len(row_of_pair):
            done = self._handle(
                RunExperts(layer=layer, rows=rows, row_of_pair=row_of_pair, counts=counts)
            )
            assert isinstance(done, ExpertRows), done
            out = np.ascontiguousarray(done.rows)
        outcome = answer(at, chip, layer, out, answer_of_pair, True, sends)
        while outcome != DONE:
            self._wait_longer(outcome)
            outcome = answer(at, chip, layer, out, answer_of_pair, False, sends)

    def _reduce(self, effect: Effect) -> Effect:
        """Exchange partial sums until the chip is done with them."""
        while isinstance(effect, PartialSums):
            at, chip, index = self._at, self._chip, self._tp_index
            sums = self._rank_sums[self._reduced % 2]
            mine = np.ascontiguousarray(effect.rows).reshape(-1)
            assert len(mine) * self._tp == len(sums), (effect.rows.shape, len(sums))
            into = sums[index * len(mine) : (index + 1) * len(mine)]
            self._reduced += 1
            word, target = word_of_rank(chip - index), self._tp * self._reduced
            outcome = add_sums(at, chip, word, target, mine, into, True)
            while outcome != DONE:
                self._wait_longer(outcome)
                outcome = add_sums(at, chip, word, target, mine, into, False)
            rows = sums.reshape(self._sizes.groups, -1, self._sizes.hidden)
            effect = self._handle(Reduce(layer=effect.layer, rows=rows))
        return effect

    def _wait_longer(self, outcome: int) -> None:
        """Raise `_Broken`, or HubGone, where those who are waited for do not come."""
        if outcome == BROKEN:
            raise _Broken
        assert outcome != UNPLACED, "tokens for an expert that no chip holds"
        assert outcome == LATE, outcome
        self._check_hub()
