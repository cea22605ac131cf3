"""The emulated machine and the processes that stand for its chips, kept in step.

A fault happens for real: a lost chip's process is killed, a hung one is silenced. It breaks a step
off; the machine plans the recovery, the chips follow, and ranks without an output repeat the step.
None of this leaves as an exception.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ChipLost
from emulator.faults.survival import SurvivalPlan
from emulator.fleet import Fleet
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.health import Health
from emulator.specs.seating import VACANT, Seating
from emulator.specs.step import RankStep
from emulator.ultraserver.lockstep import StepResult
from emulator.ultraserver.machine import Machine, RecoveryPlan, StepCosting
from emulator.ultraserver.synthetic_tokens import NoTokens, SyntheticTokens
from emulator.units import NS_PER_S
from serving.engine.engine_time import Present
from serving.engine.fault_log import FaultLog, Moved
from serving.engine.fleet_recovery import follow, positions_vacated, ranks_without_kv


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveStep:
    """A step, the time it took beside its own, and the ranks whose requests must move.

    `costing` and `seating` are of the machine that computed it; `repeats` counts broken-off
    attempts. `lost_ranks` lost their KV, even if a spare has replaced them.
    """

    result: StepResult
    costing: StepCosting
    seating: Seating
    pause_ns: int
    repeats: int
    lost_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A silent chip, given up at `until_ns`; the machine then reads weights for about `reading_ns`.

    `charged`: the wait is in the machine's stall.
    """

    chip: int
    until_ns: int
    reading_ns: int
    charged: bool = False


logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows

_TAKES_CHIP = (FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.FAIL_STACK)


class LiveMachine:
    """`machine` with its `tokens`, if any; `on_change`: chips have come or gone.

    `same_model`: the weights that compute tokens are those of the machine's own model; `log` says
    what it did after faults.
    """

    def __init__(
        self,
        machine: Machine,
        tokens: Fleet | SyntheticTokens | NoTokens,
        *,
        same_model: bool,
        time: Present,
        on_change: Callable[[], None],
        log: logging.Logger = logger,
    ) -> None:
        self.machine = machine
        self._log = log
        self.tokens = tokens
        self.faults = FaultLog(lambda: int(machine.ranks_up.sum()))
        self._same_model = same_model
        self._time = time
        self._on_change = on_change
        self.kept_out: Collection[int] = ()  # lent chips that are not called back by themselves
        self.actual: Health = machine.health  # as it is, whether or not a step has met it
        self._pause_ns = 0
        self._repeats = 0
        self._begin_ns: int | None = None
        self._lost_ranks: dict[int, int | None] = {}  # by what fault, if one
        self._told: dict[int, int | None] = {}  # of the reports since the last `credit`
        self._last_told: dict[int, int | None] = {}  # of those before it
        self._silences: dict[int, Silence] = {}

    @property
    def has_processes(self) -> bool:
        """Whether processes stand for its chips."""
        return isinstance(self.tokens, Fleet)

    @property
    def owes_ranks(self) -> bool:
        """Whether the next step reports ranks whose requests must move."""
        return bool(self._lost_ranks)

    @property
    def silence(self) -> Silence | None:
        """The first silent chip to be given up, of those that no step has met."""
        waiting = [each for each in self._silences.values() if not each.charged]
        return min(waiting, key=lambda each: each.until_ns, default=None)

    def step(
        self,
        steps: Sequence[RankStep],
        bitmasks: Mapping[int, NDArray[np.int32]],
        *,
        begin_ns: int | None = None,
    ) -> LiveStep:
        """Compute a step through any loss of chips; silences count from `begin_ns` or now."""
        self._begin_ns = begin_ns
        try:
            return self._stepped(steps, bitmasks)
        finally:
            self._begin_ns = None

    def _stepped(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> LiveStep:
        if isinstance(self.tokens, Fleet):
            result, machine = self._compute(self.tokens, steps, bitmasks)
        else:
            self.settle_pending()  # there is no process to miss
            up = [step for step in steps if step.rank not in self._lost_ranks]
            result, machine = self.tokens.step(up, bitmasks), self._machine_now()
        self.settle_pending()  # of a chip that this step did not need any more
        lost = self.take_lost_ranks()
        repeats, self._repeats = self._repeats, 0
        return LiveStep(
            result=result,
            costing=machine[0],
            seating=machine[1],
            pause_ns=self.take_pause(),
            repeats=repeats,
            lost_ranks=lost,
        )

    def _compute(
        self,
        fleet: Fleet,
        steps: Sequence[RankStep],
        bitmasks: Mapping[int, NDArray[np.int32]],
    ) -> tuple[StepResult, tuple[StepCosting, Seating]]:
        """The step, and the machine whose loads it has."""
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
                return fleet.resume(self._lost_ranks.keys()), machine
            except ChipLost as loss:
                self.meet(loss.chips)

    def _machine_now(self) -> tuple[StepCosting, Seating]:
        return self.machine.costing(), self.machine.seating

    def inject(self, fault: Fault, *, dry_run: bool = False) -> tuple[int | None, SurvivalPlan]:
        """Inject `fault`; returns its number (None: dry run) and recovery; raises ConfigError."""
        health, recovery_plan = self._after(fault)
        recovery = recovery_plan.recovery
        if dry_run:
            return None, recovery
        self.faults.check_room()
        position = self._position_of(fault.chip)
        self.actual = health
        number = self._record(fault, recovery)
        if fault.kind is FaultKind.HANG_CHIP and position is not None:
            self._silences[number] = Silence(
                chip=fault.chip,
                until_ns=self._time.now_ns + self.machine.hang_ns,
                reading_ns=recovery_plan.duration_ns,
            )
        if fault.kind not in _TAKES_CHIP or position is None:
            self.settle_pending()
        elif isinstance(self.tokens, Fleet):
            if fault.kind is FaultKind.HANG_CHIP:
                self.tokens.hang(position)
            else:
                self.tokens.kill(position)
        return number, recovery

    def stall_ns(self, fault: Fault) -> int:
        """Emulated standstill that `fault` would cause; raises as `inject`."""
        recovery_plan = self._after(fault)[1]
        kinds = [] if self._position_of(fault.chip) is None and fault.chip >= 0 else [fault.kind]
        return self.machine.notice_ns(kinds) + recovery_plan.duration_ns

    def _after(self, fault: Fault) -> tuple[Health, RecoveryPlan]:
        """The health after `fault`, and its recovery plan; changes nothing."""
        health = self.actual.after(fault, self.machine.system, self.machine.partition)
        return health, self._recovery_plan(health, ())[1]

    def heal(self, chip: int | None = None, rack: int | None = None) -> tuple[int, ...]:
        """Repair one chip, one rack's switch trays, or everything; returns the ended faults.

        Repaired chips take seats and read weights. Raises ConfigError for an unknown chip or rack.
        """
        self.actual.healed(chip, rack)  # refuses what does not exist before anything moves
        now_ns = self._time.now_ns
        for number, each in self._silences.items():
            if rack is None and chip in (None, each.chip):  # it need not be waited for
                self._silences[number] = replace(each, until_ns=min(each.until_ns, now_ns))
        self.settle_pending()  # a process that is gone has to be started again
        known = self.faults.records  # not what the repair itself may come upon
        self.actual = self.actual.healed(chip, rack)
        self._settle()
        everything = chip is None and rack is None
        numbers = [
            record.number
            for record in known
            if everything
            or (chip is not None and record.fault.chip == chip)
            or (rack is not None and record.fault.rack == rack)
        ]
        self._silences = {n: each for n, each in self._silences.items() if n not in numbers}
        return self.faults.heal(numbers, emulated_s=now_ns / NS_PER_S)

    def silence_left_ns(self) -> int:
        """Remaining stall for chips that were given up early and are not healed."""
        now_ns = self._time.now_ns
        ends = (each.until_ns for each in self._silences.values() if each.charged)
        return max(0, max(ends, default=0) - now_ns)

    @property
    def owes_pause(self) -> bool:
        """Whether the next step is longer by what the machine did since the last one."""
        return self._pause_ns > 0

    def take_pause(self) -> int:
        """Emulated time taken since the last step, to be charged by the caller."""
        pause_ns, self._pause_ns = self._pause_ns, 0
        return pause_ns

    def pause(self, duration_ns: int) -> None:
        """Lengthen the next step: the machine was busy with something else."""
        self._pause_ns += duration_ns

    def meet(self, positions: Collection[int]) -> None:
        """Recover from the loss of the chips in `positions`."""
        self._note_experts()
        self._note_gone(positions, self.machine.seating)
        self._settle()

    def look_after_processes(self) -> None:
        """Record chips whose processes ended or stopped between steps."""
        if isinstance(self.tokens, Fleet):
            self._note_gone(self.tokens.find_stopped(), self.machine.seating)

    def _note_experts(self) -> None:
        """Take the chips' expert placement over: moves may have been broken off."""
        if self._same_model and isinstance(self.tokens, Fleet):
            self.machine.place_experts(self.tokens.placement)

    def _note_gone(self, positions: Collection[int], seating: Seating) -> None:
        """Record chips that stopped by themselves; for silent ones, wall time has been waited."""
        for position in positions:
            chip = int(seating.chip_of_position[position])
            if chip != VACANT and self.actual.in_service[chip]:
                assert isinstance(self.tokens, Fleet)
                silent = position in self.tokens.silent
                logger.warning("chip %d has %s", chip, "fallen silent" if silent else "stopped")
                kind = FaultKind.HANG_CHIP if silent else FaultKind.LOSE_CHIP
                fault = Fault(kind=kind, chip=chip)
                system, partition = self.machine.system, self.machine.partition
                self.actual = self.actual.after(fault, system, partition)
                self._record(fault, self._recovery_plan(self.actual, ())[1].recovery)

    def _record(self, fault: Fault, recovery: SurvivalPlan) -> int:
        return self.faults.add(
            fault,
            emulated_s=self._time.now_s,
            survivable=recovery.survivable,
            reason=recovery.reason,
        )

    def settle_pending(self) -> None:
        """Recover from faults that no step has met."""
        if self.faults.pending:
            self._settle()

    def lend(self, chips: Collection[int]) -> bool:
        """Release `chips`: their processes end, their ranks lose their KV.

        False, without effect, if one is out of service by now or alone holds an expert.
        """
        self.settle_pending()
        if not self.actual.in_service[list(chips)].all():
            return False
        health = self.actual.lending(chips)
        recovery_plan = self.machine.recovery_plan(health)
        if recovery_plan.recovery.reloads:
            return False
        before, partition = self.machine.seating, self.machine.partition
        lost_ranks = ranks_without_kv(before, recovery_plan.recovery, partition)
        gone: Collection[int] = ()
        if not isinstance(self.tokens, Fleet):
            self.tokens.forget(lost_ranks)
        else:
            leaving = positions_vacated(before, recovery_plan.recovery).tolist()
            try:
                self.tokens.remove(leaving, lost_ranks)
            except ChipLost as loss:
                gone = loss.chips
            self.tokens.place(self.tokens.placement.without(leaving), ())
        self.actual = health
        self.machine.apply(health, recovery_plan)
        self._owe(lost_ranks, dict.fromkeys(lost_ranks))
        self._on_change()
        if gone:
            self.meet(gone)
        return True

    def take_back(self, chips: Collection[int]) -> None:
        """Seat leased `chips`, which have read their weights, again; failed ones stay out."""
        self.settle_pending()
        self.actual = self.actual.returning([c for c in chips if self.actual.lent[c]])
        self._settle(prepared=chips)

    def forget_requests(self, ranks: Collection[int]) -> None:
        """Drop the requests' state on the chips of `ranks`."""
        if not isinstance(self.tokens, Fleet):
            self.tokens.forget(ranks)
            return
        try:
            self.tokens.remove((), ranks)
        except ChipLost as loss:
            self.meet(loss.chips)

    def warm_up(self, steps: Sequence[RankStep]) -> LiveStep:
        """Compute warm-up steps between two real ones, also on ranks that have just come back."""
        owed, self._lost_ranks = self._lost_ranks, {}
        told, self._told = self._told, {}
        done = self.step(steps, {})
        found, self._told = self._told, told
        self._lost_ranks |= found | owed
        return done

    def take_lost_ranks(self) -> tuple[int, ...]:
        """Take the ranks whose requests must move and that were not reported yet."""
        lost, self._lost_ranks = self._lost_ranks, {}
        self._told = lost | self._told
        return tuple(sorted(lost))

    def credit(self, moved: Sequence[Moved]) -> int:
        """Credit moved requests to the faults that took their ranks; returns the number of others.

        One that failed for want of a rank, which no fault took, counts to the last fault of others.
        """
        of_fault: dict[int, list[Moved]] = {}
        others = 0
        told, self._told = self._told, {}
        self._last_told |= told
        took_last = max((number for number in told.values() if number is not None), default=None)
        for each in moved:
            number = self._last_told.get(each.rank)
            if number is None and each.failed:
                number = took_last
            if number is None:
                others += 1
            else:
                of_fault.setdefault(number, []).append(each)
        for number, its in of_fault.items():
            self.faults.credit(number, its, emulated_s=self._time.now_s)
        return others

    def _owe(self, ranks: Collection[int], taken_by: Mapping[int, int | None]) -> None:
        """Owe a move to the requests of `ranks`; a rank that is owed already keeps its fault."""
        for rank in ranks:
            self._lost_ranks.setdefault(rank, taken_by.get(rank))

    def _recovery_plan(
        self,
        health: Health,
        kinds: Sequence[FaultKind],
        prepared: Collection[int] = (),
        *,
        silence_ns: int = 0,
    ) -> tuple[Health, RecoveryPlan]:
        """Plan the recovery from `health`, recalling leased chips only where nothing else helps.

        Changes nothing. `silence_ns` is the wait for a silent chip.
        """
        plan = partial(self.machine.recovery_plan, prepared=prepared, silence_ns=silence_ns)
        recovery_plan = plan(health, kinds)
        recalled = self.machine.recallable(health, recovery_plan.recovery, kept_out=self.kept_out)
        if recalled:
            health = health.returning(recalled)
            recovery_plan = plan(health, kinds)
        return health, recovery_plan

    def _settle(self, prepared: Collection[int] = ()) -> None:
        """Recover; the chips `prepared` have read the weights of a seat that they take."""
        silence_ns = self._silence_ns()
        while True:
            kinds = self._noticed()
            health, recovery_plan = self._recovery_plan(
                self.actual, kinds, prepared, silence_ns=silence_ns
            )
            recovery = recovery_plan.recovery
            before, partition = self.machine.seating, self.machine.partition
            lost_ranks = ranks_without_kv(before, recovery, partition)
            try:
                if not isinstance(self.tokens, Fleet):
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
        self.actual = health
        taken_by = self._taken_by(lost_ranks, before, recovery.seating)
        self.machine.apply(health, recovery_plan)
        self._owe(lost_ranks, taken_by)
        self._silences = {n: replace(s, charged=True) for n, s in self._silences.items()}
        self._pause_ns += recovery_plan.duration_ns
        self._on_change()
        pending = [record.fault.kind for record in self.faults.pending]
        if pending:
            self._log.warning("after %s: %s", ", ".join(pending), recovery.reason)
        self.faults.settle(
            emulated_s=self._time.now_s,
            duration_ns=recovery_plan.duration_ns,
            experts_reloaded=len(recovery.reloads),
            survived=recovery.survivable,
        )

    def _silence_ns(self) -> int:
        """Wait for silent chips from the step's begin on, or from now."""
        silence = self.silence
        if silence is None:
            return 0
        begin_ns = self._time.now_ns if self._begin_ns is None else self._begin_ns
        return max(0, silence.until_ns - begin_ns)

    def _taken_by(
        self, ranks: Collection[int], before: Seating, after: Seating
    ) -> dict[int, int | None]:
        """The fault behind each rank's loss: the first that took a chip of it, or the last one."""
        pending = self.faults.pending
        last = pending[-1].number if pending else None
        taken_by: dict[int, int | None] = dict.fromkeys(ranks, last)
        for record in reversed(pending):  # the first that took a chip of the rank is its fault
            for seating in (after, before):
                seats = np.flatnonzero(seating.chip_of_position == record.fault.chip)
                if record.fault.chip >= 0 and len(seats):
                    rank = self.machine.partition.rank_of_chip(int(seats[0]))
                    if rank in taken_by:
                        taken_by[rank] = record.number
        return taken_by

    def _noticed(self) -> list[FaultKind]:
        """Pending faults that hold this machine up; silent and leased chips' do not."""
        lent = self.actual.lent
        faults = [record.fault for record in self.faults.pending]
        return [
            fault.kind
            for fault in faults
            if fault.kind is not FaultKind.HANG_CHIP and (fault.chip < 0 or not lent[fault.chip])
        ]

    def _position_of(self, chip: int) -> int | None:
        seats = np.flatnonzero(self.machine.seating.chip_of_position == chip)
        return int(seats[0]) if chip >= 0 and len(seats) else None
