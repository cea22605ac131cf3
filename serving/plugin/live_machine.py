"""The emulated machine and the processes that stand for its chips, kept in step with each other.

A fault is let happen for real: a lost chip's process is killed, a hung one is told to be silent.
The step that meets it breaks off; then the machine says how to go on, the chips are made to, and
the step is repeated by the ranks that have no output yet. Nothing of this leaves as an exception.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from vllm.logger import init_logger

from emulator.fleet import ChipLost, Fleet, MadeUpTokens, StepResult
from emulator.model import Health, Machine, Recovery, Settlement, StepCosting
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.seating import VACANT, Seating
from emulator.specs.step import RankStep
from serving.plugin.fault_log import FaultLog, Outcome
from serving.plugin.fleet_recovery import follow, positions_vacated, ranks_without_kv

logger = init_logger(f"vllm.{__name__}")

_TAKES_CHIP = (FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.FAIL_STACK)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveStep:
    """A step, what it took beside its own time, and the ranks whose requests must move.

    `costing` and `seating` are of the machine that computed it, before anything that was noticed
    after it; `repeats` counts the attempts that broke off before.
    `lost_ranks` have lost their KV, whether or not a spare has brought them back.
    """

    result: StepResult
    costing: StepCosting
    seating: Seating
    pause_ns: int
    repeats: int
    lost_ranks: tuple[int, ...]


class LiveMachine:
    """`machine` with the `tokens` that are computed, or made up, on it.

    `same_model` says that the weights which compute tokens are those of the machine's own model.
    `now_s` is the emulated present; `on_change` is called when chips have come or gone.
    """

    def __init__(
        self,
        machine: Machine,
        tokens: Fleet | MadeUpTokens,
        *,
        same_model: bool,
        now_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self.machine = machine
        self.tokens = tokens
        self.faults = FaultLog()
        self._same_model = same_model
        self._now_s = now_s
        self._on_change = on_change
        self.kept_out: Collection[int] = ()  # lent chips that are not called back by themselves
        self._actual: Health = machine.health
        self._pause_ns = 0
        self._repeats = 0
        self._lost_ranks: set[int] = set()

    @property
    def actual(self) -> Health:
        """What has happened to the machine, whether or not a step has met it."""
        return self._actual

    @property
    def owes_ranks(self) -> bool:
        """Whether the next step will tell of ranks whose requests must move."""
        return bool(self._lost_ranks)

    def step(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> LiveStep:
        """Compute one step of every rank in `steps`, through any loss of chips."""
        if isinstance(self.tokens, MadeUpTokens):
            self.settle_pending()  # there is no process to miss
            up = [step for step in steps if step.rank not in self._lost_ranks]
            result, machine = self.tokens.step(up, bitmasks), self._machine_now()
        else:
            result, machine = self._compute(self.tokens, steps, bitmasks)
        self.settle_pending()  # of a chip that this step did not need any more
        lost, self._lost_ranks = self._lost_ranks, set()
        repeats, self._repeats = self._repeats, 0
        return LiveStep(
            result=result,
            costing=machine[0],
            seating=machine[1],
            pause_ns=self.take_pause(),
            repeats=repeats,
            lost_ranks=tuple(sorted(lost)),
        )

    def _compute(
        self,
        fleet: Fleet,
        steps: Sequence[RankStep],
        bitmasks: Mapping[int, NDArray[np.int32]],
    ) -> tuple[StepResult, tuple[StepCosting, Seating]]:
        """The step, and the machine that the step's loads are of."""
        wanted = [step for step in steps if step.rank not in self._lost_ranks]
        machine = self._machine_now()
        try:
            return fleet.step(wanted, bitmasks), machine
        except ChipLost as loss:
            self.meet(loss.chips)
        while True:
            self._repeats += 1
            if not fleet.has_loads:
                machine = self._machine_now()
            try:
                return fleet.resume(self._lost_ranks), machine
            except ChipLost as loss:
                self.meet(loss.chips)

    def _machine_now(self) -> tuple[StepCosting, Seating]:
        """What steps cost, and who sits where."""
        return self.machine.costing(), self.machine.seating

    def inject(self, fault: Fault, *, dry_run: bool = False) -> tuple[int | None, Recovery]:
        """Let `fault` happen; returns its number and what it will lead to.

        Raises ConfigError for a fault that cannot happen on this machine as it is.
        """
        health = self._actual.after(fault, self.machine.system, self.machine.partition)
        recovery = self._settlement(health, ())[1].recovery
        if dry_run:
            return None, recovery
        self.faults.check_room()
        position = self._position_of(fault.chip)
        self._actual = health
        number = self._record(fault, recovery)
        if fault.kind not in _TAKES_CHIP or position is None:
            self.settle_pending()
        elif isinstance(self.tokens, Fleet):
            if fault.kind is FaultKind.HANG_CHIP:
                self.tokens.hang(position)
            else:
                self.tokens.kill(position)
        return number, recovery

    def heal(self, chip: int | None = None, rack: int | None = None) -> tuple[int, ...]:
        """Repair one chip, or one rack's switch trays, or everything when neither is given.

        Returns the numbers of the faults that are over. Repaired chips take vacant seats again, and
        read their weights. Raises ConfigError for a chip or a rack that does not exist.
        """
        self._actual.healed(chip, rack)  # refuses what does not exist before anything moves
        self.settle_pending()  # a process that is gone has to be started again
        known = self.faults.records  # not what the repair itself may come upon
        self._actual = self._actual.healed(chip, rack)
        self._settle()
        everything = chip is None and rack is None
        numbers = [
            record.number
            for record in known
            if everything
            or (chip is not None and record.fault.chip == chip)
            or (rack is not None and record.fault.rack == rack)
        ]
        return self.faults.heal(numbers, emulated_s=self._now_s())

    def take_pause(self) -> int:
        """Emulated time that was taken since the last step, to be charged by the caller."""
        pause_ns, self._pause_ns = self._pause_ns, 0
        return pause_ns

    def pause(self, duration_ns: int) -> None:
        """Let the next step take so much longer: the machine was busy with something else."""
        self._pause_ns += duration_ns

    def meet(self, positions: Collection[int]) -> None:
        """The chips of `positions` were found gone: go on without them, or with spares."""
        self._note_experts()
        self._note_gone(positions, self.machine.seating)
        self._settle()

    def _note_experts(self) -> None:
        """Experts lie as the chips say: moves may have been broken off."""
        if self._same_model and isinstance(self.tokens, Fleet):
            self.machine.place_experts(self.tokens.placement)

    def _note_gone(self, positions: Collection[int], seating: Seating) -> None:
        """Chips that nobody took have stopped by themselves, in seats that they have or take."""
        for position in positions:
            chip = int(seating.chip_of_position[position])
            if chip != VACANT and self._actual.in_service[chip]:
                logger.warning("chip %d has stopped by itself", chip)
                fault = Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
                system, partition = self.machine.system, self.machine.partition
                self._actual = self._actual.after(fault, system, partition)
                self._record(fault, self._settlement(self._actual, ())[1].recovery)

    def _record(self, fault: Fault, recovery: Recovery) -> int:
        return self.faults.add(
            fault,
            emulated_s=self._now_s(),
            survivable=recovery.survivable,
            reason=recovery.reason,
        )

    def settle_pending(self) -> None:
        """Go on with faults that no step has met."""
        if self.faults.pending:
            self._settle()

    def lend(self, chips: Collection[int]) -> bool:
        """Let `chips` go to somebody else: their processes end, their ranks lose their KV.

        False when it cannot be now, because of what has happened since it was planned: one of them
        is out of service, or an expert lies on nobody else; then nothing has changed.
        """
        self.settle_pending()
        if not self._actual.in_service[list(chips)].all():
            return False
        health = self._actual.lending(chips)
        settlement = self.machine.settlement(health)
        if settlement.recovery.reloads:
            return False
        before, partition = self.machine.seating, self.machine.partition
        lost_ranks = ranks_without_kv(before, settlement.recovery, partition)
        gone: Collection[int] = ()
        if isinstance(self.tokens, MadeUpTokens):
            self.tokens.forget(lost_ranks)
        else:
            leaving = positions_vacated(before, settlement.recovery).tolist()
            try:
                self.tokens.remove(leaving, lost_ranks)
            except ChipLost as loss:
                gone = loss.chips
            self.tokens.place(self.tokens.placement.without(leaving), ())
        self._actual = health
        self.machine.settle(health, settlement)
        self._lost_ranks |= lost_ranks
        self._on_change()
        if gone:
            self.meet(gone)
        return True

    def take_back(self, chips: Collection[int]) -> None:
        """Let `chips`, which are lent out and have read their weights, take seats again.

        Those that have failed meanwhile stay out.
        """
        self.settle_pending()
        self._actual = self._actual.returning([c for c in chips if self._actual.lent[c]])
        self._settle(prepared=chips)

    def forget_requests(self, ranks: Collection[int]) -> None:
        """Let the chips of `ranks` forget what they know of requests."""
        if isinstance(self.tokens, MadeUpTokens):
            self.tokens.forget(ranks)
            return
        try:
            self.tokens.remove((), ranks)
        except ChipLost as loss:
            self.meet(loss.chips)

    def warm_up(self, steps: Sequence[RankStep]) -> LiveStep:
        """Compute made-up steps between two real ones, also on ranks that have just come back.

        Ranks that lose their KV in it are told of with those before it.
        """
        owed, self._lost_ranks = self._lost_ranks, set()
        done = self.step(steps, {})
        self._lost_ranks |= owed.union(done.lost_ranks)
        return done

    def take_lost_ranks(self) -> tuple[int, ...]:
        """Ranks whose requests must move, and have not been told of; they are with this."""
        lost, self._lost_ranks = self._lost_ranks, set()
        return tuple(sorted(lost))

    def _settlement(
        self, health: Health, kinds: Sequence[FaultKind], prepared: Collection[int] = ()
    ) -> tuple[Health, Settlement]:
        """How to go on with `health`, in which lent chips are called back where nothing else helps.

        Changes nothing.
        """
        settlement = self.machine.settlement(health, kinds, prepared=prepared)
        recalled = self.machine.recallable(health, settlement.recovery, kept_out=self.kept_out)
        if recalled:
            health = health.returning(recalled)
            settlement = self.machine.settlement(health, kinds, prepared=prepared)
        return health, settlement

    def _settle(self, prepared: Collection[int] = ()) -> None:
        """Go on with what has happened: the machine decides, the chips follow.

        The chips `prepared` have read the weights of a seat that they take.
        """
        started = time.perf_counter()
        while True:
            kinds = self._noticed()
            health, settlement = self._settlement(self._actual, kinds, prepared)
            recovery = settlement.recovery
            before, partition = self.machine.seating, self.machine.partition
            lost_ranks = ranks_without_kv(before, recovery, partition)
            try:
                if isinstance(self.tokens, MadeUpTokens):
                    self.tokens.forget(lost_ranks)
                else:
                    follow(
                        self.tokens,
                        before,
                        recovery,
                        partition,
                        lost_ranks=lost_ranks,
                        same_model=self._same_model,
                    )
                break
            except ChipLost as loss:
                self._note_experts()
                self._note_gone(loss.chips, recovery.seating)
        self._actual = health
        self.machine.settle(health, settlement)
        self._lost_ranks |= lost_ranks
        self._pause_ns += settlement.duration_ns
        self._on_change()
        if kinds:
            logger.warning("after %s: %s", ", ".join(kinds), recovery.reason)
        outcome = Outcome(
            emulated_ns=settlement.duration_ns,
            wall_s=time.perf_counter() - started,
            experts_reloaded=len(recovery.reloads),
        )
        self.faults.settle(outcome, survived=recovery.survivable)

    def _noticed(self) -> list[FaultKind]:
        """Pending faults that hold this machine up: those of lent chips are somebody else's."""
        lent = self._actual.lent
        faults = [record.fault for record in self.faults.pending]
        return [fault.kind for fault in faults if fault.chip < 0 or not lent[fault.chip]]

    def _position_of(self, chip: int) -> int | None:
        seats = np.flatnonzero(self.machine.seating.chip_of_position == chip)
        return int(seats[0]) if chip >= 0 and len(seats) else None
