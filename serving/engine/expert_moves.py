"""Expert balancing of a live machine: counts, moves, and the moves' cost.

Moves of the timed model's experts cost emulated time; those of the weights that compute tokens
really move between the chips' memories. One model may be both.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ChipLost
from emulator.fleet import Fleet
from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.lockstep import StepResult
from serving.engine.deployment import ROUTING_SEED, Deployment
from serving.engine.expert_balancer import ExpertBalancer, Move
from serving.engine.live_machine import LiveMachine
from serving.policy.placement.chip_loads import chip_loads
from serving.policy.placement.eplb_settings import EplbSettings
from serving.policy.placement.migration import migration, transfer_bytes
from serving.wire.machine_snapshot import ExpertChoices
from serving.wire.machine_state import ExpertBalance

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedExperts:
    """Expert copies moved in a hand-over, each of one layer, and bytes that crossed links in
    `duration_ns`, charged to the next step; `joules` are beyond idle chips.
    """

    copies: int = 0
    link_bytes: int = 0
    duration_ns: int = 0
    joules: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeployedExperts:
    """Whose experts move, and where they lie: from a `Deployment`, which explains the fields."""

    partition: Partition
    time_model: ModelSpec
    weights: ModelSpec
    distribution: ExpertDistribution | None
    eplb: EplbSettings | None
    tray_of_chip: I64
    rack_of_chip: I64

    @classmethod
    def of(cls, deployment: Deployment) -> Self:
        """Those of `deployment`."""
        return cls(**{each.name: getattr(deployment, each.name) for each in fields(cls)})


@dataclass(slots=True, kw_only=True, eq=False)
class _UndrawnSteps:
    """Steps under one placement whose experts' choices are not drawn yet: the tokens of each group,
    [groups].
    """

    placement: ExpertPlacement
    tokens: I64
    steps: int = 0


class ExpertMoves:
    """Balances the experts of a live machine as its deployment asks."""

    def __init__(self, deployment: DeployedExperts, live: LiveMachine) -> None:
        self._deployment = deployment
        self._live = live
        self._same_model = deployment.distribution is None
        self.moved_bytes = 0
        self._draws = np.random.default_rng(ROUTING_SEED)
        self._undrawn: _UndrawnSteps | None = None
        if deployment.distribution is not None:
            # Sums of recorded loads may pass 1 by a rounding.
            self._chance = np.minimum(deployment.distribution.probability, 1.0)
        timed, weights = deployment.time_model, deployment.weights
        self._timed = self._balancer(timed.moe_layers, timed.experts)
        self._weights = self._timed
        if not self._same_model:
            self._weights = self._balancer(weights.moe_layers, weights.experts)

        fleet = live.tokens
        self._home = live.machine.placement
        self._home_of_weights = fleet.placement if isinstance(fleet, Fleet) else self._home

    def _balancer(self, layers: int, experts: int) -> ExpertBalancer | None:
        """None for a model without experts."""
        if not layers:
            return None
        partition = self._deployment.partition
        return ExpertBalancer(
            self._deployment.eplb,
            layers=layers,
            groups=partition.chips // partition.ep,
            experts=experts,
            tray_of_chip=self._deployment.tray_of_chip,
            rack_of_chip=self._deployment.rack_of_chip,
        )

    def after_step(self, result: StepResult, batch: StepBatch) -> None:
        """Count a step's choices, and make the moves that are due before the next."""
        if result.expert_pairs is not None and result.loads is not None:
            assert self._weights is not None, "tokens were dispatched to experts"
            self._weights.count(result.expert_pairs, result.loads.pairs.astype(np.int64))
        if self._timed is not None and self._deployment.distribution is not None:
            self._note_undrawn(self._timed, batch)
        machine, fleet = self._live.machine, self._live.tokens
        if self._timed is not None:
            move = self._timed.next_move(machine.placement, machine.chips_up)
            if move is not None:
                self._move_on_machine(move)
        if not self._same_model and self._weights is not None and isinstance(fleet, Fleet):
            move = self._weights.next_move(fleet.placement, machine.chips_up)
            if move is not None:
                self._really_move(move)

    def _note_undrawn(self, timed: ExpertBalancer, batch: StepBatch) -> None:
        """Draw the step's choices at once if experts move by them, else with others."""
        undrawn, placement = self._undrawn, self._live.machine.placement
        tokens = self._tokens_of_groups(batch)
        if undrawn is None or undrawn.placement is not placement:
            self._draw(timed)
            self._undrawn = undrawn = _UndrawnSteps(
                placement=placement, tokens=np.zeros_like(tokens)
            )
        undrawn.tokens += tokens
        undrawn.steps += 1
        if undrawn.steps == timed.row_left:
            self._draw(timed)

    def _tokens_of_groups(self, batch: StepBatch) -> I64:
        """Of a step, [groups]: a rank's chips dispatch equal shares of its tokens."""
        partition = self._deployment.partition
        of_chip = np.repeat(batch.tokens_by_rank() / partition.tp, partition.tp)  # [chips]
        of_group = of_chip.reshape(-1, partition.ep).sum(axis=1)
        tokens: I64 = np.rint(of_group).astype(np.int64)
        return tokens

    def _draw(self, timed: ExpertBalancer) -> None:
        """Draw and count each expert's tokens, independently, of the steps that are undrawn."""
        undrawn, self._undrawn = self._undrawn, None
        if undrawn is None:
            return
        drawn = self._draws.binomial(undrawn.tokens[:, None, None], self._chance)
        drawn *= undrawn.placement.copies() > 0  # a group that has just closed computes nothing
        pairs = np.rint(chip_loads(drawn, undrawn.placement)).astype(np.int64)
        timed.count(drawn.swapaxes(0, 1), pairs, steps=undrawn.steps)

    def _counted(self) -> ExpertBalancer | None:
        """The timed model's, with all steps so far."""
        if self._timed is not None:
            self._draw(self._timed)
        return self._timed

    @property
    def imbalance(self) -> float | None:
        """Of the timed model's experts, as counted; see `ExpertBalancer.imbalance`."""
        timed = self._counted()
        return None if timed is None else timed.imbalance(self._live.machine.chips_up)

    @property
    def rebalances(self) -> int:
        """Completed rebalances of the timed model's experts."""
        return 0 if self._timed is None else self._timed.rebalances

    def bring_home(self) -> None:
        """Restore the initial placement once every chip is back, unless the next plan does."""
        if self._deployment.eplb is None and self._live.machine.chips_up.all():
            self._go_to(self._home, None if self._same_model else self._home_of_weights)

    def leave(self, chips: Collection[int]) -> MovedExperts | None:
        """Copy to the remaining chips the experts that only `chips` hold.

        None when a chip was lost meanwhile. Raises ConfigError, with figures, if they do not fit.
        """
        machine, fleet = self._live.machine, self._live.tokens
        goal = machine.departure(chips).placement
        stand_in = None
        if not self._same_model and isinstance(fleet, Fleet):
            stand_in = machine.departure(chips, fleet.placement).placement
        return self._go_to(goal, stand_in)

    def come_back(self) -> MovedExperts | None:
        """Restore the initial placement on present chips, unless plans do; None as for `leave`."""
        machine, fleet = self._live.machine, self._live.tokens
        if self._deployment.eplb is not None or not machine.ranks_up.any():
            return MovedExperts()
        stand_in = None
        if not self._same_model and isinstance(fleet, Fleet):
            stand_in = machine.home_on(self._home_of_weights, fleet.placement)
        return self._go_to(machine.home_on(self._home), stand_in)

    def _go_to(
        self, goal: ExpertPlacement, stand_in: ExpertPlacement | None
    ) -> MovedExperts | None:
        machine, fleet = self._live.machine, self._live.tokens
        moved = MovedExperts()
        move = self._way_to(machine.placement, goal)
        if move is not None:
            done = self._move_on_machine(move)
            if done is None:
                return None
            moved = done
        if stand_in is not None and isinstance(fleet, Fleet):
            move = self._way_to(fleet.placement, stand_in)
            if move is not None and not self._really_move(move):
                return None
        return moved

    def _way_to(self, before: ExpertPlacement, home: ExpertPlacement) -> Move | None:
        """The move to `home`, which may have fewer slots than `before`, or more."""
        slots = home.padded(before.slots)
        before = replace(before, expert_of_slot=before.padded(home.slots))
        if np.array_equal(slots, before.expert_of_slot):
            return None
        transfers = migration(
            before,
            replace(home, expert_of_slot=slots),
            tray_of_chip=self._deployment.tray_of_chip,
            rack_of_chip=self._deployment.rack_of_chip,
        )
        return Move(placement=home, transfers=transfers)

    def plan_soon(self) -> None:
        """Plan anew, as chips have come or gone."""
        self._counted()
        for balancer in (self._timed, self._weights):
            if balancer is not None:
                balancer.plan_soon()

    def _move_on_machine(self, move: Move) -> MovedExperts | None:
        """Move the timed model's experts, and charge the links; None if broken off."""
        machine = self._live.machine
        if self._same_model and not self._really_move(move):
            return None
        moved = transfer_bytes(
            move.transfers, self._deployment.time_model.expert_bytes, machine.partition.chips
        )
        # What moves between slots of one chip crosses no link.
        between = moved * ~np.eye(machine.partition.chips, dtype=np.bool_)
        self.moved_bytes += int(between.sum())
        cost = machine.moving(between)
        machine.place_experts(move.placement)
        self._live.pause(cost.duration_ns)
        return MovedExperts(
            copies=len(move.transfers),
            link_bytes=cost.bytes_links,
            duration_ns=cost.duration_ns,
            joules=cost.joules,
        )

    def _really_move(self, move: Move) -> bool:
        """Move weights between the chips' memories; False if a chip was lost meanwhile."""
        fleet = self._live.tokens
        assert isinstance(fleet, Fleet), "the timed model is the one that chips compute"
        try:
            fleet.place(move.placement, move.transfers)
        except ChipLost as loss:
            self._live.meet(loss.chips)
            return False
        return True

    @property
    def load(self) -> ExpertChoices:
        """Choices of the timed model's experts in the balancing window."""
        timed = self._counted()
        if timed is None:
            return ExpertChoices(layers=0, experts=0, tokens=(), imbalance=None)
        tokens = timed.load()
        layers, experts = tokens.shape
        return ExpertChoices(
            layers=layers,
            experts=experts,
            tokens=tuple(tokens.ravel().tolist()),
            imbalance=self.imbalance,
        )

    @property
    def balance(self) -> ExpertBalance:
        """Imbalance of the timed model's experts, now and before they last moved."""
        now = self.imbalance
        return ExpertBalance(
            imbalance=now,
            imbalance_before=None if self._timed is None else self._timed.before,
            imbalance_after=now if self.rebalances else None,
            rebalances=self.rebalances,
            moved_bytes=self.moved_bytes,
        )
