"""Lends groups of chips out to training and takes them back, while the others go on serving.

A group goes through the phases of `serving.daynight.handover`, whose table every change here asks.
The engine calls `advance` between two steps, and at control calls while it is idle; what is due is
then done at once, in emulated time that the next step is charged, but for two waits in which the
others serve: for the group's requests to end, and for its chips to read their weights.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError, HbmExhausted
from emulator.specs.hbm_usage import HbmOwner
from emulator.units import GB, NS_PER_S
from serving.daynight.handover import Event, Phase, transition
from serving.errors import LeaseRefused
from serving.metrics.control_call import DrainRequest, TrainingNote
from serving.metrics.machine_state import LeaseState, TrainingTotals
from serving.plugin.expert_moves import ExpertMoves, MovedExperts
from serving.plugin.lease_checks import chips_that_can_leave
from serving.plugin.live_machine import LiveMachine
from serving.plugin.merge import RankQueues

LEASES_KEPT: Final = 100
"""Leases that have ended and are still told of; those before them are forgotten."""

TrainingHbm = Callable[[int], Mapping[HbmOwner, int]]
"""Bytes of each chip by owner of a training state on so many chips; HbmExhausted when they cannot
hold it, ConfigError for what cannot be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """A made-up step on ranks that have just come back: its time, and what their chips drew."""

    duration_ns: int
    joules: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTotals:
    """Since the engine's start: hand-overs that were completed, there and back, and their cost;
    what jobs said that they trained, and drew beyond idle chips.
    """

    handovers: int = 0
    handover_bytes: int = 0
    handover_joules: float = 0.0
    training_tokens: int = 0
    training_joules: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Lease:
    """`until_ns` ends the wait of its phase; `requests` were on its ranks when it began to drain;
    `lost` are chips that had failed when their return began.
    """

    state: LeaseState
    needs: Mapping[HbmOwner, int]
    since_ns: int
    until_ns: int
    requests: int
    lost: tuple[int, ...] = ()
    extra_joules: float = 0.0

    @property
    def phase(self) -> Phase:
        return Phase(self.state.phase)

    def change(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


class ChipLeases:
    """All leases of a live machine.

    `now_ns` is the emulated present; `training_hbm` says what training takes; `warm_up` computes a
    step on ranks; `spend` counts joules that chips drew beyond idle outside of steps.
    """

    def __init__(
        self,
        live: LiveMachine,
        experts: ExpertMoves,
        *,
        now_ns: Callable[[], int],
        training_hbm: TrainingHbm,
        warm_up: Callable[[Sequence[int]], WarmUp],
        spend: Callable[[float], None],
    ) -> None:
        self._live = live
        self._experts = experts
        self._now_ns = now_ns
        self._training_hbm = training_hbm
        self._warm_up = warm_up
        self._spend = spend
        self._idle_chip_watts = live.machine.cost_model.idle_chip_watts
        self._leases: dict[int, _Lease] = {}
        self._count = 0
        self._moving: list[int] = []  # vacated, but the requests that moved not yet counted
        self.totals = LeaseTotals()

    # --- what is told ---------------------------------------------------------------------------

    @property
    def states(self) -> tuple[LeaseState, ...]:
        """Those that go on, and the last ones that have ended, by number."""
        return tuple(lease.state for lease in self._leases.values())

    def state(self, number: int) -> LeaseState:
        """Of one lease; raises ConfigError for one that there never was."""
        return self._of(number).state

    @property
    def phases(self) -> dict[int, str]:
        """The phase of each chip that is in a lease that goes on, by chip."""
        return {chip: lease.phase for lease in self._ongoing() for chip in lease.state.chips}

    @property
    def chips_lent(self) -> int:
        """Chips that are out of service for a lease."""
        return int(self._live.actual.lent.sum())

    @property
    def ranks_open(self) -> NDArray[np.bool_]:
        """Ranks that new requests may go to, bool[ranks]: all but those that drain."""
        is_open = np.ones(self._live.machine.partition.ranks, dtype=np.bool_)
        for lease in self._ongoing(Phase.DRAINING):
            is_open[list(lease.state.ranks)] = False
        return is_open

    def _ongoing(self, phase: Phase | None = None) -> list[_Lease]:
        return [
            lease
            for lease in self._leases.values()
            if (lease.phase is not Phase.SERVING if phase is None else lease.phase is phase)
        ]

    # --- what is asked --------------------------------------------------------------------------

    def drain(self, request: DrainRequest, queues: Sequence[RankQueues]) -> tuple[int | None, str]:
        """Begin to drain chips; the lease's number, and what will happen in words.

        A dry run changes nothing and has no number.

        Raises ConfigError for chips that do not exist or a time below 0, LeaseRefused with the
        figures for what cannot be now.
        """
        if not 0 <= request.grace_s < float("inf"):
            raise ConfigError(field="grace_s", value=request.grace_s, expected="at least 0 seconds")
        machine = self._live.machine
        draining = {c for lease in self._ongoing(Phase.DRAINING) for c in lease.state.chips}
        ranks = chips_that_can_leave(request.chips, machine, self._live.actual, self.phases)
        needs, words = self._fits(request.chips, ranks, draining)
        if request.dry_run:
            return None, f"nothing has been done: {words}"
        self._count += 1
        now_ns = self._now_ns()
        grace_ns = round(request.grace_s * NS_PER_S)
        self._leases[self._count] = _Lease(
            state=_new_state(self._count, tuple(sorted(request.chips)), ranks, words),
            needs=needs,
            since_ns=now_ns,
            until_ns=now_ns + grace_ns,
            requests=_requests_on(ranks, queues),
        )
        lease = self._leases[self._count]
        self._enter(lease, Event.DRAIN, words, until_ns=lease.until_ns)
        return self._count, words

    def _fits(
        self, chips: Sequence[int], ranks: Sequence[int], draining: Collection[int]
    ) -> tuple[Mapping[HbmOwner, int], str]:
        """What training takes of each chip, and in words what leaves; raises LeaseRefused."""
        machine = self._live.machine
        try:
            plan = machine.departure(chips)
            if draining:
                machine.departure({*chips, *draining})
            needs = self._training_hbm(len(chips))
            positions = np.flatnonzero(np.isin(machine.seating.chip_of_position, list(chips)))
            for position in positions.tolist():
                machine.hbm.check_lending(position, needs)
        except ConfigError as error:
            raise LeaseRefused(str(error)) from None
        except HbmExhausted as error:
            raise LeaseRefused(error.hint or str(error).splitlines()[0]) from None
        taken = sum(needs.values()) / GB
        chip_gb = machine.system.chip.hbm_bytes / GB
        named = ", ".join(map(str, ranks))
        words = [f"ranks {named} leave"]
        if plan.slots_needed:
            words.append(
                f"{plan.copied} expert copies go to chips that stay, which have memory for "
                f"{plan.slots_there} experts of a layer where {plan.slots_needed} are needed"
            )
        words.append(f"a training state takes {taken:.1f} of {chip_gb:.1f} GB a chip")
        return needs, "; ".join(words)

    def resume(self, number: int) -> int:
        """Take a lease's chips back, or call its drain off; one that is being restored goes on.

        Raises ConfigError for a lease that there never was, LeaseRefused for one that has ended.
        """
        lease = self._of(number)
        if lease.phase is Phase.DRAINING:
            self._end(lease, Event.CANCELLED, "called off while it drained")
        elif lease.phase is Phase.TRAINING:
            self._begin_return(lease)
        elif lease.phase is Phase.SERVING:
            raise LeaseRefused(f"lease {number} has ended: {lease.state.reason}")
        return number

    def note(self, note: TrainingNote) -> int:
        """Take what a job says; what its chips drew beyond idle since it last did is spent.

        Raises as `resume`; LeaseRefused also for a lease whose chips are not with a job.
        """
        lease = self._of(note.lease)
        if lease.phase not in (Phase.TRAINING, Phase.RESTORING):
            raise LeaseRefused(f"lease {note.lease} is {lease.phase}: no job has its chips")
        before = lease.state.training
        totals = TrainingTotals(
            steps=note.steps,
            tokens=note.tokens,
            loss=note.loss,
            joules=note.joules,
            emulated_s=note.emulated_s,
            watts=note.watts,
            hbm_bytes_per_chip=note.hbm_bytes_per_chip,
        )
        lease.change(training=totals)
        idle_joules = self._idle_chip_watts * len(lease.state.chips) * note.emulated_s
        beyond = max(0.0, note.joules - idle_joules - lease.extra_joules)
        lease.extra_joules += beyond
        self._spend(beyond)
        self._add(
            training_tokens=max(0, note.tokens - (before.tokens if before else 0)),
            training_joules=beyond,
        )
        return note.lease

    def _of(self, number: int) -> _Lease:
        lease = self._leases.get(number)
        if lease is None:
            known = ", ".join(map(str, self._leases)) or "none so far"
            raise ConfigError(field="lease", value=number, expected=f"a lease: {known}")
        return lease

    def count_moved(self, moved: int) -> None:
        """So many requests have gone to other ranks since chips were last vacated."""
        moving, self._moving = self._moving, []
        if len(moving) == 1:  # of several together each keeps what it saw of its own queues
            lease = self._leases.get(moving[0])
            if lease is not None:
                drained = max(0, lease.requests - moved)
                lease.change(moved_requests=moved, drained_requests=drained)

    # --- what goes on by itself -----------------------------------------------------------------

    def advance(self, queues: Sequence[RankQueues], *, waits: bool) -> None:
        """Do what is due. `queues` are the ranks' schedulers at the last step.

        `waits` says that emulated time passes until the next call; otherwise, in an idle engine in
        virtual time, a wait for weights is charged to the next step.
        """
        self.meet_recalls()
        for lease in self._ongoing():
            if lease.phase is Phase.DRAINING:
                self._go_on_draining(lease, queues)
            elif lease.phase is Phase.TRAINING:
                self._go_on_training(lease)
            else:
                self._go_on_restoring(lease, waits=waits)
        ended = [number for number, each in self._leases.items() if each.phase is Phase.SERVING]
        for number in ended[:-LEASES_KEPT]:
            del self._leases[number]

    def meet_recalls(self) -> None:
        """End the leases whose chips the machine has taken back by itself."""
        for lease in self._ongoing():
            away = self._live.actual.lent[list(lease.state.chips)]
            if lease.phase is not Phase.DRAINING and not away.all():
                self._called_back(lease)

    def _go_on_draining(self, lease: _Lease, queues: Sequence[RankQueues]) -> None:
        chips, ranks = list(lease.state.chips), list(lease.state.ranks)
        machine = self._live.machine
        if not self._live.actual.in_service[chips].all() or not machine.ranks_up[ranks].all():
            lost = self._lost(lease)
            why = f"chips {_listed(lost)} were lost" if lost else "a rank of it went down"
            self._end(lease, Event.CHIP_LOST, f"{why} while it drained")
            return
        left = _requests_on(ranks, queues)
        now_ns = self._now_ns()
        if left and now_ns < lease.until_ns:
            lease.change(reason=f"{left} requests are left on ranks {_listed(ranks)}")
            return
        try:
            moved = self._experts.leave(chips)
        except ConfigError as error:
            self._end(lease, Event.DRAIN_FAILED, str(error))
            return
        if moved is None:
            return  # a chip was lost meanwhile: look again after the next step
        self._count_experts(lease, moved)
        if not self._live.lend(chips):
            return
        positions = [at for chip in chips if (at := machine.lent_position(chip)) is not None]
        machine.hold_training(positions, lease.needs)
        self._moving.append(lease.state.number)
        lease.change(
            drain_s=(now_ns - lease.since_ns) / NS_PER_S,
            moved_requests=left,
            drained_requests=max(0, lease.requests - left),
        )
        self._add(handovers=1)
        self._enter(lease, Event.VACATED, "lent out")

    def _go_on_training(self, lease: _Lease) -> None:
        lost = self._lost(lease)
        if lost != lease.state.lost_chips:
            self._enter(lease, Event.CHIP_LOST, f"chips {_listed(lost)} were lost while lent out")

    def _begin_return(self, lease: _Lease) -> None:
        """The training state leaves HBM, and chips that work begin to read their weights."""
        machine = self._live.machine
        lease.lost = self._lost(lease)
        working = [chip for chip in lease.state.chips if chip not in lease.lost]
        machine.reclaim(self._positions(lease))
        until_ns = self._now_ns() + self._read(lease, working)
        self._enter(lease, Event.RESUME, "reads its weights", until_ns=until_ns)

    def _go_on_restoring(self, lease: _Lease, *, waits: bool) -> None:
        lost = self._lost(lease)
        if lost != lease.lost:
            self._live.machine.hold_training(self._positions(lease), {})
            words = f"chips {_listed(lost)} were lost while weights were read"
            self._enter(lease, Event.CHIP_LOST, words)
            return
        now_ns = self._now_ns()
        left_ns = max(0, lease.until_ns - now_ns)
        if left_ns and waits:
            return
        self._live.pause(left_ns)
        reading_ns = now_ns + left_ns - lease.since_ns
        self._live.take_back(lease.state.chips)
        machine = self._live.machine
        moved = self._experts.come_back()
        if moved is not None:
            self._count_experts(lease, moved)
        ranks = [rank for rank in lease.state.ranks if machine.ranks_up[rank]]
        lease.change(restore_s=lease.state.restore_s + reading_ns / NS_PER_S)
        self._count_joules(lease, self._idle_joules(lease, reading_ns))
        if ranks:
            warm = self._warm_up(ranks)
            lease.change(warm_s=lease.state.warm_s + warm.duration_ns / NS_PER_S)
            self._count_joules(lease, warm.joules)
        self._end(lease, Event.RESTORED, self._back_words(lease))

    def _called_back(self, lease: _Lease) -> None:
        """The machine could not go on without some of the chips: it has them, and gets the rest."""
        away = [chip for chip in lease.state.chips if self._live.actual.lent[chip]]
        if away:
            self._live.pause(self._live.machine.reading(away).duration_ns)
            self._live.take_back(away)
        if lease.phase is Phase.TRAINING:
            self._read(lease, lease.state.chips)
            self._enter(lease, Event.RESUME, "called back")
        moved = self._experts.come_back()
        if moved is not None:
            self._count_experts(lease, moved)
        words = "called back: without its chips nobody could have gone on; "
        self._end(lease, Event.RESTORED, words + self._back_words(lease))

    def _back_words(self, lease: _Lease) -> str:
        up = self._live.machine.ranks_up
        down = [rank for rank in lease.state.ranks if not up[rank]]
        lost = self._lost(lease)
        if not down:
            return "all its ranks serve again"
        failed = f"chips {_listed(lost)} have failed, " if lost else ""
        return f"{failed}ranks {_listed(down)} stay down"

    # --- books ----------------------------------------------------------------------------------

    def _enter(
        self, lease: _Lease, event: Event, reason: str, *, until_ns: int | None = None
    ) -> None:
        """Take `event` through the table; raises HandoverError for one that it does not hold."""
        before = lease.phase
        after = transition(before, event)
        if after is not before:
            lease.since_ns = self._now_ns()
            lease.until_ns = lease.since_ns if until_ns is None else until_ns
            lease.change(
                phase=str(after),
                since_emulated_s=lease.since_ns / NS_PER_S,
                until_emulated_s=None if until_ns is None else until_ns / NS_PER_S,
            )
        lease.change(reason=reason, lost_chips=self._lost(lease))

    def _end(self, lease: _Lease, event: Event, reason: str) -> None:
        if event is Event.RESTORED:
            self._add(handovers=1)
        self._enter(lease, event, reason)

    def _lost(self, lease: _Lease) -> tuple[int, ...]:
        works = self._live.actual.works
        return tuple(chip for chip in lease.state.chips if not works[chip])

    def _positions(self, lease: _Lease) -> list[int]:
        machine = self._live.machine
        found = (machine.lent_position(chip) for chip in lease.state.chips)
        return [position for position in found if position is not None]

    def _count_experts(self, lease: _Lease, moved: MovedExperts) -> None:
        lease.change(
            experts_moved=lease.state.experts_moved + moved.copies,
            bytes_links=lease.state.bytes_links + moved.link_bytes,
            experts_s=lease.state.experts_s + moved.duration_ns / NS_PER_S,
        )
        self._add(handover_bytes=moved.link_bytes)
        self._spend(moved.joules)
        self._count_joules(lease, moved.joules + self._idle_joules(lease, moved.duration_ns))

    def _read(self, lease: _Lease, chips: Collection[int]) -> int:
        """Count that `chips` read their weights; the time that it takes, in ns."""
        if not chips:
            return 0
        cost = self._live.machine.reading(chips)
        lease.change(bytes_storage=lease.state.bytes_storage + cost.bytes_storage)
        self._add(handover_bytes=cost.bytes_storage)
        self._spend(cost.joules)
        self._count_joules(lease, cost.joules)
        return cost.duration_ns

    def _idle_joules(self, lease: _Lease, duration_ns: int) -> float:
        """What its chips draw for being on while they change hands; the engine counts it too."""
        return self._idle_chip_watts * len(lease.state.chips) * duration_ns / NS_PER_S

    def _count_joules(self, lease: _Lease, joules: float) -> None:
        lease.change(joules=lease.state.joules + joules)
        self._add(handover_joules=joules)

    def _add(self, **more: float) -> None:
        totals = {name: getattr(self.totals, name) + value for name, value in more.items()}
        self.totals = replace(self.totals, **totals)


def _new_state(
    number: int, chips: tuple[int, ...], ranks: tuple[int, ...], reason: str
) -> LeaseState:
    return LeaseState(
        number=number,
        chips=chips,
        ranks=ranks,
        phase=str(Phase.SERVING),
        reason=reason,
        since_emulated_s=0.0,
        until_emulated_s=None,
        lost_chips=(),
        drained_requests=0,
        moved_requests=0,
        experts_moved=0,
        bytes_links=0,
        bytes_storage=0,
        joules=0.0,
        drain_s=0.0,
        experts_s=0.0,
        vacate_s=0.0,
        restore_s=0.0,
        warm_s=0.0,
        training=None,
    )


def _requests_on(ranks: Sequence[int], queues: Sequence[RankQueues]) -> int:
    """Requests of these ranks that have not ended, as their schedulers last said."""
    if not queues:
        return 0
    return sum(queues[rank].running + queues[rank].waiting for rank in ranks)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
