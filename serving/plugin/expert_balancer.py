"""Keeps experts balanced: counts what routers choose, and plans the next moves from a window of it.

It decides; who owns the weights moves them. With `use_async` one layer moves after each step, so
that every step waits for one layer's weights at most; otherwise all layers move at once.
"""

import logging
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import ExpertPlacement, ExpertTransfer
from serving.placement.balance import rebalance
from serving.placement.eplb_settings import EplbSettings
from serving.placement.expert_load import ExpertLoad
from serving.placement.imbalance import imbalance
from serving.placement.migration import migration, rounds
from serving.placement.settled import keep_settled

logger = logging.getLogger(f"vllm.{__name__}")

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_GAIN = 0.05
"""A layer moves when its busiest chip gets at least this share less load: without a threshold half
of all slots moved for gains below a hundredth, when nothing but chance had changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Tokens of the busiest chip over the mean chip's, averaged over layers, in the window.

    `before` and `after` are those of the last rebalance, by the load that it was made from.
    """

    now: float | None = None
    before: float | None = None
    after: float | None = None
    rebalances: int = 0
    moved_experts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move:
    """Transfers that lead from one placement to `placement`."""

    placement: ExpertPlacement
    transfers: tuple[ExpertTransfer, ...]


class ExpertBalancer:
    """Balances the experts of one model on the chips of a partition.

    `tray_of_chip` and `rack_of_chip` are int64[chips]. Without `settings` it only counts.
    """

    def __init__(
        self,
        settings: EplbSettings | None,
        *,
        layers: int,
        experts: int,
        tray_of_chip: I64,
        rack_of_chip: I64,
    ) -> None:
        self._settings = settings or EplbSettings()
        self._moves_experts = settings is not None
        self._load = ExpertLoad(
            window_steps=self._settings.window_size, layers=layers, experts=experts
        )
        self._tray_of_chip = tray_of_chip
        self._rack_of_chip = rack_of_chip
        self._steps = 0
        self._due = False
        self._planned: deque[int] = deque()  # layers that have yet to move
        self._goal: ExpertPlacement | None = None
        self.balance = Balance()

    def count(self, expert_pairs: I64) -> None:
        """Take the choices of one step, int64[layers, experts]."""
        self._load.add(expert_pairs)
        self._steps += 1
        self._due = self._due or self._steps % self._settings.step_interval == 0

    def next_move(self, placement: ExpertPlacement, usable: Bools) -> Move | None:
        """What to move before the next step; None when nothing is due.

        `usable`, bool[chips], are the chips that work.
        """
        if not self._moves_experts:
            return None
        if self._due and not self._planned:
            self._plan(placement, usable)
            self._due = False
        self._log(placement, usable)
        if self._goal is None:
            return None
        count = 1 if self._settings.use_async else len(self._planned)
        layers = [self._planned.popleft() for _ in range(count)]
        slots = placement.expert_of_slot.copy()
        slots[layers] = self._goal.expert_of_slot[layers]
        after = replace(placement, expert_of_slot=slots)
        transfers = migration(
            placement, after, tray_of_chip=self._tray_of_chip, rack_of_chip=self._rack_of_chip
        )
        if not self._planned:
            self._goal = None
        self.balance = replace(
            self.balance, moved_experts=self.balance.moved_experts + len(transfers)
        )
        return Move(placement=after, transfers=transfers)

    def forget_plan(self) -> None:
        """Drop moves that have not begun: the chips are not what they were."""
        self._planned.clear()
        self._goal = None

    def measure(self, placement: ExpertPlacement, usable: Bools) -> float | None:
        """The present imbalance over the window; None before the first token."""
        total = self._load.total()
        if not total.any():
            return None
        return float(imbalance(total, placement, usable).mean())

    def _plan(self, placement: ExpertPlacement, usable: Bools) -> None:
        total = self._load.total()
        if not total.any():
            return
        goal = rebalance(
            total,
            slots=placement.slots,
            ep=placement.ep,
            tray_of_chip=self._tray_of_chip,
            rack_of_chip=self._rack_of_chip,
            usable=usable,
            previous=placement,
        )
        goal = keep_settled(total, placement, goal, usable=usable, least_gain=LEAST_GAIN)
        before, after = (float(imbalance(total, p, usable).mean()) for p in (placement, goal))
        transfers = migration(
            placement, goal, tray_of_chip=self._tray_of_chip, rack_of_chip=self._rack_of_chip
        )
        self.balance = replace(
            self.balance, before=before, after=after, rebalances=self.balance.rebalances + 1
        )
        self._planned = deque(moves[0].layer for moves in rounds(transfers))
        self._goal = goal if self._planned else None
        logger.info(
            "expert imbalance (busiest chip over mean) %.3f -> %.3f: %d experts of %d layers move",
            before,
            after,
            len(transfers),
            len(self._planned),
        )

    def _log(self, placement: ExpertPlacement, usable: Bools) -> None:
        settings = self._settings
        if settings.log_balancedness and self._steps % settings.log_balancedness_interval == 0:
            now = self.measure(placement, usable)
            if now is not None:
                logger.info("expert imbalance (busiest chip over mean) %.3f", now)
