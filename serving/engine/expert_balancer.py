"""Balances experts: counts routing choices, and plans moves from a window of them.

With `use_async` one layer moves after each step, so that a step waits for one layer's weights at
most; else all layers move at once.
"""

import logging
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from serving.policy.placement.balance import rebalance
from serving.policy.placement.chip_loads import ExpertWindow
from serving.policy.placement.eplb_settings import EplbSettings
from serving.policy.placement.migration import keep_settled, migration

logger = logging.getLogger(f"vllm.{__name__}")

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROW_STEPS = 100
"""Of a window that nothing is planned from: its steps are counted so many at a time."""
LEAST_GAIN = 0.05
"""A layer moves when its busiest chip gets at least this share less load: otherwise half of all
slots moved for gains below a hundredth, by chance alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move:
    """Transfers that lead from one placement to `placement`."""

    placement: ExpertPlacement
    transfers: tuple[ExpertTransfer, ...]


class ExpertBalancer:
    """Balances the experts of one model; without `settings` it only counts.

    `tray_of_chip` and `rack_of_chip` are int64[chips]; `groups` are expert-parallel. `before` is
    the imbalance when the last completed rebalance was planned.
    """

    def __init__(
        self,
        settings: EplbSettings | None,
        *,
        layers: int,
        groups: int,
        experts: int,
        tray_of_chip: I64,
        rack_of_chip: I64,
    ) -> None:
        self._settings = settings or EplbSettings()
        self._moves_experts = settings is not None
        self._shape = (layers, groups, experts)
        self._chips = len(tray_of_chip)
        self._load = self._new_window(layers * groups, experts)
        self._pairs = self._new_pairs()
        self._tray_of_chip = tray_of_chip
        self._rack_of_chip = rack_of_chip
        self._steps = 0
        self._due = False
        self._planned: deque[int] = deque()  # layers that have yet to move
        self._goal: ExpertPlacement | None = None
        self._planned_at: float | None = None
        self.before: float | None = None
        self.rebalances = 0

    def _new_pairs(self) -> ExpertWindow:
        return self._new_window(self._shape[0], self._chips)

    def _new_window(self, layers: int, experts: int) -> ExpertWindow:
        return ExpertWindow(
            window_steps=self._settings.window_size,
            layers=layers,
            experts=experts,
            row_steps=1 if self._moves_experts else ROW_STEPS,
        )

    @property
    def row_left(self) -> int:
        """Steps that may be counted together."""
        return min(self._load.row_left, self._pairs.row_left)

    def count(self, expert_pairs: I64, chip_pairs: I64, *, steps: int = 1) -> None:
        """Count steps: choices, int64[layers, groups, experts]; pairs, int64[layers, chips]."""
        layers, groups, experts = self._shape
        self._load.add(expert_pairs.reshape(layers * groups, experts), steps=steps)
        self._pairs.add(chip_pairs, steps=steps)
        self._steps += steps
        self._due = self._due or self._steps % self._settings.step_interval == 0

    def next_move(self, placement: ExpertPlacement, usable: Bools) -> Move | None:
        """The move before the next step, or None; `usable`, bool[chips], are the working chips."""
        if not self._moves_experts:
            return None
        if self._due and not self._planned:
            self._plan(placement, usable)
            self._due = False
        self._log(usable)
        if self._goal is None:
            return None
        count = 1 if self._settings.use_async else len(self._planned)
        layers = [self._planned.popleft() for _ in range(count)]
        move = self._move(placement, self._goal, layers)
        if not self._planned:
            self._goal = None
            self.rebalances += 1
            self.before = self._planned_at
            self._pairs = self._new_pairs()  # of the new places alone
        return move

    def plan_soon(self) -> None:
        """Plan anew, as chips have come or gone; moves that have not begun are void."""
        self._planned.clear()
        self._goal = None
        self._due = self._steps > 0
        self._pairs = self._new_pairs()

    def load(self) -> I64:
        """Pairs in the window, of all groups together: int64[layers, experts]."""
        total: I64 = self._load.total().reshape(self._shape).sum(axis=1)
        return total

    def imbalance(self, usable: Bools) -> float | None:
        """Counted pairs of the busiest chip over the mean chip's, averaged over layers.

        Of the window, since experts last moved; None before the first token.
        """
        pairs = self._pairs.total()[:, usable]  # [layers, chips]
        pairs = pairs[pairs.any(axis=1)]  # few tokens may leave a layer without
        if not len(pairs):
            return None
        return float((pairs.max(axis=1) / pairs.mean(axis=1)).mean())

    def _plan(self, placement: ExpertPlacement, usable: Bools) -> None:
        total = self._load.total()
        # A group that has lost experts is closed: nothing is computed there.
        is_open = (placement.copies() > 0).all(axis=(1, 2))
        if not total.any() or not is_open.any():
            return
        positions = np.flatnonzero(np.repeat(is_open, placement.ep))
        layers, groups, experts = self._shape
        load = total.reshape(layers, groups, experts).swapaxes(0, 1)[is_open]
        previous = replace(placement, expert_of_slot=placement.expert_of_slot[:, positions])
        goal = rebalance(
            load,
            slots=placement.slots,
            ep=placement.ep,
            tray_of_chip=self._tray_of_chip[positions],
            rack_of_chip=self._rack_of_chip[positions],
            usable=usable[positions],
            previous=previous,
        )
        goal = keep_settled(load, previous, goal, usable=usable[positions], least_gain=LEAST_GAIN)
        slots = placement.expert_of_slot.copy()
        slots[:, positions] = goal.expert_of_slot
        changed = (slots != placement.expert_of_slot) & (slots != EMPTY)
        self._planned = deque(np.flatnonzero(changed.any(axis=(1, 2))).tolist())
        if not self._planned:
            return
        self._goal = replace(placement, expert_of_slot=slots)
        self._planned_at = self.imbalance(usable)
        logger.info(
            "expert imbalance (busiest chip over mean) %.3f: %d of %d slots get another expert",
            self._planned_at or 0.0,
            int(changed.sum()),
            changed.size,
        )

    def _move(self, placement: ExpertPlacement, goal: ExpertPlacement, layers: list[int]) -> Move:
        """The transfers of `layers` alone; planning all would take long."""
        before = replace(placement, expert_of_slot=placement.expert_of_slot[layers])
        after = replace(goal, expert_of_slot=goal.expert_of_slot[layers])
        transfers = migration(
            before, after, tray_of_chip=self._tray_of_chip, rack_of_chip=self._rack_of_chip
        )
        slots = placement.expert_of_slot.copy()
        slots[layers] = goal.expert_of_slot[layers]
        return Move(
            placement=replace(placement, expert_of_slot=slots),
            transfers=tuple(replace(each, layer=layers[each.layer]) for each in transfers),
        )

    def _log(self, usable: Bools) -> None:
        settings = self._settings
        if settings.log_balancedness and self._steps % settings.log_balancedness_interval == 0:
            now = self.imbalance(usable)
            if now is not None:
                logger.info("expert imbalance (busiest chip over mean) %.3f", now)
