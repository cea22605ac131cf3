"""Expert balancing of a live machine: what is counted, what moves, and what the moves cost.

Two sets of experts may lie on the chips: those of the model that sets time, whose moves cost
emulated time, and those of the weights that compute tokens, which really move between the chips'
memories. They are the same where one model is both.
"""

import numpy as np

from emulator.fleet import ChipLost, Fleet, StepResult
from emulator.specs.seating import VACANT
from emulator.specs.tensor_group import Split
from serving.metrics.machine_state import ExpertBalance
from serving.placement.migration import transfer_bytes
from serving.plugin.deployment import Deployment
from serving.plugin.expert_balancer import ExpertBalancer, Move
from serving.plugin.live_machine import LiveMachine

MEASURE_STEPS = 16
"""The imbalance that metrics show is of every so many steps: it takes milliseconds at 144 chips."""


class ExpertMoves:
    """Balances the experts of a live machine as its deployment asks."""

    def __init__(self, deployment: Deployment, live: LiveMachine) -> None:
        self._deployment = deployment
        self._live = live
        self._same_model = deployment.distribution is None
        self.moved_bytes = 0
        self.last_imbalance = 0.0
        self._steps = 0
        timed, weights = deployment.time_model, deployment.weights
        self._expert_bytes = sum(
            group.copy_bytes for group in timed.tensor_groups() if group.split is Split.EXPERT
        )
        self._timed = self._balancer(timed.moe_layers, timed.experts)
        self._weights = self._timed
        if not self._same_model:
            self._weights = self._balancer(weights.moe_layers, weights.experts)

    def _balancer(self, layers: int, experts: int) -> ExpertBalancer:
        partition, system = self._deployment.partition, self._deployment.system
        chips = partition.first_chip + np.arange(partition.chips)
        return ExpertBalancer(
            self._deployment.eplb,
            layers=layers,
            experts=experts,
            tray_of_chip=chips // system.chips_per_tray.count,
            rack_of_chip=chips // system.chips_per_rack,
        )

    def after_step(self, result: StepResult, tokens: int) -> None:
        """Count the choices of a step of `tokens`, and move what is due before the next."""
        if result.expert_pairs is not None:
            self._weights.count(result.expert_pairs)
        distribution = self._deployment.distribution
        if distribution is not None and self._deployment.time_model.experts:
            expected = np.rint(tokens * distribution.probability).astype(np.int64)
            self._timed.count(expected)
        self._steps += 1
        if self._steps % MEASURE_STEPS == 1:
            self.last_imbalance = self._measure() or 0.0
        self._move_timed()
        if not self._same_model:
            self._move_weights()

    @property
    def rebalances(self) -> int:
        """How often the timed model's experts were given new places."""
        return self._timed.balance.rebalances

    def _measure(self) -> float | None:
        machine = self._live.machine
        return self._timed.measure(machine.placement, machine.chips_up)

    def forget_plans(self) -> None:
        """Chips have come or gone: moves that have not begun are void."""
        self._timed.forget_plan()
        self._weights.forget_plan()

    def _move_timed(self) -> None:
        machine = self._live.machine
        move = self._timed.next_move(machine.placement, machine.chips_up)
        if move is None:
            return
        if self._same_model and not self._really_move(move):
            return
        moved = transfer_bytes(move.transfers, self._expert_bytes, machine.partition.chips)
        # What moves between slots of one chip crosses no link.
        between = moved.between_chips * ~np.eye(machine.partition.chips, dtype=np.bool_)
        self.moved_bytes += int(between.sum())
        machine.place_experts(move.placement)
        self._live.pause(machine.transfer_ns(between))

    def _move_weights(self) -> None:
        fleet = self._live.tokens
        if isinstance(fleet, Fleet):
            up = self._live.machine.seating.chip_of_position != VACANT
            move = self._weights.next_move(fleet.placement, up)
            if move is not None:
                self._really_move(move)

    def _really_move(self, move: Move) -> bool:
        """Move weights between the chips' memories; a chip lost meanwhile is for the next step."""
        fleet = self._live.tokens
        if not isinstance(fleet, Fleet):
            return True
        try:
            fleet.place(move.placement, move.transfers)
        except ChipLost as loss:
            self._live.meet(loss.chips)
            return False
        return True

    @property
    def balance(self) -> ExpertBalance:
        """How even the timed model's experts are, and were."""
        balance = self._timed.balance
        return ExpertBalance(
            imbalance=self._measure(),
            imbalance_before=balance.before,
            imbalance_after=balance.after,
            rebalances=balance.rebalances,
            moved_bytes=self.moved_bytes,
        )
