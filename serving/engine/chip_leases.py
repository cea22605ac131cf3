"""Leases groups of chips and takes them back, while the others go on serving.

Phases change by the table of `serving.policy.day_night.handover`. The engine calls `advance`
between steps, and at control calls while idle. Due work is done at once, in emulated time charged
to the next step, except two waits in which others serve: for the group's requests to end, and for
its chips to read their weights.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError, HbmExhausted
from emulator.specs.hbm_usage import HbmOwner
from emulator.units import NS_PER_S, gib_text
from serving.engine.engine_time import Present
from serving.engine.expert_moves import ExpertMoves
from serving.engine.lease_checks import chips_that_can_leave
from serving.engine.lease_ledger import LeaseLedger, LeaseTotals
from serving.engine.lease_record import Lease, listed, new_lease_state, requests_on
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine
from serving.engine.scheduler_state import RankQueues
from serving.errors import LeaseRefused
from serving.policy.day_night.handover import CHANGING_HANDS, HandoverEvent, HandoverPhase
from serving.wire.control_call import DrainRequest, TrainingNote
from serving.wire.machine_state import FOR_TRAINING, LeaseState

LEASES_KEPT: Final = 100
"""Ended leases that are still shown; older ones are forgotten."""

_OUT: Final = (HandoverPhase.TRAINING, HandoverPhase.MAINTENANCE)

TrainingHbm = Callable[[int], Mapping[HbmOwner, int]]
"""Bytes of each chip by owner of a training state on so many chips; raises HbmExhausted if it does
not fit, ConfigError for what cannot be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """A warm-up step on ranks that have just come back: its duration, and its chips' joules."""

    duration_ns: int
    joules: float


class ServedVersions(Protocol):
    """The weights that ranks serve: `ModelVersions`, or the same on all."""

    @property
    def waiting_blocks(self) -> int:
        """Blocks that are to serve others."""
        ...

    @property
    def closed_ranks(self) -> tuple[int, ...]:
        """Ranks that are about to."""
        ...

    def number_of(self, rank: int) -> int:
        """The version that a rank serves."""
        ...


class ChipLeases:
    """All leases of a live machine; `warm_up` computes a step on ranks."""

    def __init__(
        self,
        live: LiveMachine,
        experts: ExpertMoves,
        versions: ServedVersions,
        *,
        time: Present,
        training_hbm: TrainingHbm,
        warm_up: Callable[[Sequence[int]], WarmUp],
        ledger: Ledger,
    ) -> None:
        self._live = live
        self._experts = experts
        self._versions = versions
        self._time = time
        self._training_hbm = training_hbm
        self._warm_up = warm_up
        self._ledger = LeaseLedger(live, ledger)
        self._leases: dict[int, Lease] = {}
        self._going_on: list[Lease] = []  # few, while many may have ended: each step looks at them
        self._count = 0
        self._moving: list[int] = []  # vacated, but the requests that moved not yet counted

    # --- state ---

    @property
    def totals(self) -> LeaseTotals:
        """Of all leases since the engine's start."""
        return self._ledger.totals

    @property
    def states(self) -> tuple[LeaseState, ...]:
        """Ongoing leases and the last ones that have ended, by number."""
        return tuple(lease.state for lease in self._leases.values())

    @property
    def going_on(self) -> tuple[LeaseState, ...]:
        """Ongoing leases, by number."""
        return tuple(lease.state for lease in self._going_on)

    def state(self, number: int) -> LeaseState:
        """State of one lease; raises ConfigError for an unknown number."""
        return self._of(number).state

    @property
    def phases(self) -> dict[int, str]:
        """The phase of each chip in an ongoing lease, by chip."""
        return {chip: lease.phase for lease in self._ongoing() for chip in lease.state.chips}

    @property
    def chips_leased(self) -> int:
        """Chips out of service for a lease."""
        return int(self._live.actual.lent.sum())

    @property
    def trains(self) -> bool:
        """Whether chips are with a job, or on their way back from one."""
        out = (lease for lease in self._going_on if lease.phase is not HandoverPhase.DRAINING)
        return any(not lease.for_maintenance for lease in out)

    @property
    def ranks_open(self) -> NDArray[np.bool_]:
        """Ranks that take new requests, bool[ranks]: all but draining ones."""
        is_open = np.ones(self._live.machine.partition.ranks, dtype=np.bool_)
        for lease in self._ongoing(HandoverPhase.DRAINING):
            is_open[list(lease.state.ranks)] = False
        return is_open

    @property
    def waits(self) -> bool:
        """Whether a lease advances once time has passed."""
        return any(lease.phase in CHANGING_HANDS for lease in self._ongoing())

    @property
    def next_ns(self) -> int | None:
        """When the first wait of an ongoing lease ends; None without one."""
        waits = [lease.until_ns for lease in self._going_on if lease.phase in CHANGING_HANDS]
        return min(waits, default=None)

    def _ongoing(self, phase: HandoverPhase | None = None) -> list[Lease]:
        return [lease for lease in self._going_on if phase in (None, lease.phase)]

    # --- requests ---

    def drain(self, request: DrainRequest, queues: Sequence[RankQueues]) -> tuple[int | None, str]:
        """Begin to drain chips; returns the lease's number (None for a dry run) and the plan.

        Of a group that is to train, chips that have failed or have no rank stay.

        Raises ConfigError for unknown chips or a time below 0, LeaseRefused, with figures, for a
        drain that is not possible now.
        """
        if not 0 <= request.grace_s < float("inf"):
            raise ConfigError("grace_s", request.grace_s, "at least 0 seconds")
        machine = self._live.machine
        draining = {c for lease in self._ongoing(HandoverPhase.DRAINING) for c in lease.state.chips}
        trains = request.purpose == FOR_TRAINING
        chips, ranks = chips_that_can_leave(
            request.chips, machine, self._live.actual, self.phases, leaves_some=trains
        )
        needs, words = self._fits(chips, ranks, draining, trains=trains)
        if stay := sorted(set(request.chips) - set(chips)):
            words = f"chips {listed(stay)} have failed, or have no rank, and stay; {words}"
        if request.dry_run:
            return None, f"nothing has been done: {words}"
        self._count += 1
        lease = Lease(
            state=new_lease_state(self._count, chips, ranks, words, request.purpose),
            needs=needs,
            requests=requests_on(ranks, queues),
        )
        self._leases[self._count] = lease
        self._going_on.append(lease)
        until_ns = self._time.now_ns + round(request.grace_s * NS_PER_S)
        self._enter(lease, HandoverEvent.DRAIN, words, until_ns=until_ns)
        return self._count, words

    def _fits(
        self,
        chips: Collection[int],
        ranks: Sequence[int],
        draining: Collection[int],
        *,
        trains: bool,
    ) -> tuple[Mapping[HbmOwner, int], str]:
        """HBM per chip that the job takes, and the departure in words; raises LeaseRefused."""
        machine = self._live.machine
        try:
            plan = machine.departure(chips)
            if draining:
                machine.departure({*chips, *draining})
            needs = self._training_hbm(len(chips)) if trains else {}
            for position in plan.positions:
                machine.hbm.check_lending(position, needs)
        except ConfigError as error:
            raise LeaseRefused(str(error)) from None
        except HbmExhausted as error:
            raise LeaseRefused(error.hint or str(error).splitlines()[0]) from None
        taken, whole = gib_text(sum(needs.values())), gib_text(machine.system.chip.hbm_bytes)
        leave = f"ranks {listed(ranks)}" if ranks else "chips of ranks that are down"
        words = [f"{leave} leave"]
        if plan.slots_needed:
            words.append(
                f"{plan.copied} expert copies go to chips that stay, which have memory for "
                f"{plan.slots_there} experts of a layer where {plan.slots_needed} are needed"
            )
        words.append(
            f"a training state takes {taken} of {whole} a chip" if trains else "for maintenance"
        )
        return needs, "; ".join(words)

    def resume(self, number: int) -> int:
        """Take a lease's chips back, or cancel its drain.

        Raises ConfigError for an unknown lease, LeaseRefused for an ended one.
        """
        lease = self._of(number)
        if lease.phase is HandoverPhase.DRAINING:
            self._enter(lease, HandoverEvent.CANCELLED, "called off while it drained")
        elif lease.phase in _OUT:
            self._begin_return(lease)
        elif lease.phase is HandoverPhase.SERVING:
            raise LeaseRefused(f"lease {number} has ended: {lease.state.reason}")
        return number

    def note(self, note: TrainingNote) -> int:
        """Charge a job's joules beyond idle; raises as `resume`, and LeaseRefused without a job."""
        lease = self._of(note.lease)
        if lease.for_maintenance or lease.phase not in (
            HandoverPhase.TRAINING,
            HandoverPhase.RESTORING,
        ):
            raise LeaseRefused(f"lease {note.lease} is {lease.phase}: no job has its chips")
        self._ledger.take_note(lease, note.totals)
        return note.lease

    def _of(self, number: int) -> Lease:
        lease = self._leases.get(number)
        if lease is None:
            known = ", ".join(map(str, self._leases)) or "none so far"
            raise ConfigError("lease", number, f"a lease: {known}")
        return lease

    def count_moved(self, moved: int) -> None:
        """Record requests that moved since chips were last vacated."""
        moving, self._moving = self._moving, []
        if len(moving) == 1:  # of several together each keeps what it saw of its own queues
            lease = self._leases.get(moving[0])
            if lease is not None:
                drained = max(0, lease.requests - moved)
                lease.change(moved_requests=moved, drained_requests=drained)

    # --- advance ---

    def advance(self, queues: Sequence[RankQueues], *, waits: bool) -> None:
        """Do what is due; `queues` are of the last step.

        `waits`: emulated time passes until the next call; else (idle, virtual time) a wait for
        weights is charged to the next step.
        """
        self.meet_recalls()
        for lease in self._ongoing():
            if lease.phase is HandoverPhase.DRAINING:
                self._go_on_draining(lease, queues)
            elif lease.phase in _OUT:
                self._go_on_out(lease)
            else:
                self._go_on_restoring(lease, waits=waits)

    def meet_recalls(self) -> None:
        """End the leases whose chips the machine has recalled."""
        for lease in self._ongoing():
            away = self._live.actual.lent[list(lease.state.chips)]
            if lease.phase is not HandoverPhase.DRAINING and not away.all():
                self._called_back(lease)

    def _go_on_draining(self, lease: Lease, queues: Sequence[RankQueues]) -> None:
        chips, ranks = list(lease.state.chips), list(lease.state.ranks)
        machine = self._live.machine
        if not self._live.actual.in_service[chips].all() or not machine.ranks_up[ranks].all():
            lost = self._lost(lease)
            why = f"chips {listed(lost)} were lost" if lost else "a rank of it went down"
            self._enter(lease, HandoverEvent.CHIP_LOST, f"{why} while it drained")
            return
        left = requests_on(ranks, queues)
        now_ns = self._time.now_ns
        if left and (now_ns < lease.until_ns or not self._serve_elsewhere(ranks)):
            late = " that end on the weights they began with" if now_ns >= lease.until_ns else ""
            lease.change(reason=f"{left} requests are left on ranks {listed(ranks)}{late}")
            return
        try:
            moved = self._experts.leave(chips)
        except ConfigError as error:
            self._enter(lease, HandoverEvent.DRAIN_FAILED, str(error))
            return
        if moved is None:
            return  # a chip was lost meanwhile: look again after the next step
        self._ledger.count_experts(lease, moved)
        if not self._live.lend(chips):
            return
        machine.hold_training(self._positions(lease), lease.needs)
        self._moving.append(lease.state.number)
        lease.change(
            drain_s=(now_ns - lease.since_ns) / NS_PER_S,
            moved_requests=left,
            drained_requests=max(0, lease.requests - left),
        )
        if lease.for_maintenance:
            self._enter(lease, HandoverEvent.EMPTIED, "out of service for maintenance")
        else:
            self._enter(lease, HandoverEvent.VACATED, "lent out")

    def _serve_elsewhere(self, ranks: Sequence[int]) -> bool:
        """Whether open ranks serve the weights of `ranks`; in a roll-out they may not."""
        versions = self._versions
        if not versions.waiting_blocks and not versions.closed_ranks:
            return True
        takes = self._live.machine.ranks_up & self.ranks_open
        takes[list(versions.closed_ranks)] = False
        served = {versions.number_of(rank) for rank in np.flatnonzero(takes).tolist()}
        return {versions.number_of(rank) for rank in ranks} <= served

    def _weights_of(self, lease: Lease) -> tuple[int, ...]:
        return tuple(self._versions.number_of(rank) for rank in lease.state.ranks)

    def _go_on_out(self, lease: Lease) -> None:
        lost = self._lost(lease)
        if lost != lease.state.lost_chips:
            where = "out for maintenance" if lease.for_maintenance else "lent out"
            self._enter(
                lease, HandoverEvent.CHIP_LOST, f"chips {listed(lost)} were lost while {where}"
            )

    def _begin_return(self, lease: Lease) -> None:
        machine = self._live.machine
        lease.lost = self._lost(lease)
        machine.reclaim(self._positions(lease))
        until_ns = self._read_weights(lease)
        self._enter(lease, HandoverEvent.RESUME, "reads its weights", until_ns=until_ns)

    def _read_weights(self, lease: Lease) -> int:
        """Charge the read of weights on working chips; returns its end in ns."""
        lease.weights = self._weights_of(lease)
        working = [chip for chip in lease.state.chips if chip not in lease.lost]
        return self._time.now_ns + self._ledger.read(lease, working)

    def _go_on_restoring(self, lease: Lease, *, waits: bool) -> None:
        lost = self._lost(lease)
        if lost != lease.lost:
            self._live.machine.hold_training(self._positions(lease), {})
            words = f"chips {listed(lost)} were lost while weights were read"
            event = HandoverEvent.SENT_BACK if lease.for_maintenance else HandoverEvent.CHIP_LOST
            self._enter(lease, event, words)
            return
        now_ns = self._time.now_ns
        if lease.weights != self._weights_of(lease):  # what they have read is of no use
            lease.wait(self._read_weights(lease))
            lease.change(reason="reads weights that were published meanwhile")
        left_ns = max(0, lease.until_ns - now_ns)
        if left_ns and waits:
            return
        self._live.pause(left_ns)
        reading_ns = now_ns + left_ns - lease.since_ns
        self._live.take_back(lease.state.chips)
        machine = self._live.machine
        moved = self._experts.come_back()
        if moved is not None:
            self._ledger.count_experts(lease, moved)
        ranks = [rank for rank in lease.state.ranks if machine.ranks_up[rank]]
        self._ledger.count_reading(lease, reading_ns)
        if ranks:
            warm = self._warm_up(ranks)
            self._ledger.count_warm_up(lease, warm.duration_ns, warm.joules)
        self._enter(lease, HandoverEvent.RESTORED, self._back_words(lease))

    def _called_back(self, lease: Lease) -> None:
        """Return all chips of a lease of which the machine has recalled some."""
        away = [chip for chip in lease.state.chips if self._live.actual.lent[chip]]
        if away:
            self._live.pause(self._live.machine.reading(away).duration_ns)
            self._live.take_back(away)
        if lease.phase is HandoverPhase.TRAINING:
            self._ledger.read(lease, lease.state.chips)
            self._enter(lease, HandoverEvent.RESUME, "called back")
        moved = self._experts.come_back()
        if moved is not None:
            self._ledger.count_experts(lease, moved)
        words = "called back: without its chips nobody could have gone on; "
        self._enter(lease, HandoverEvent.RESTORED, words + self._back_words(lease))

    def _back_words(self, lease: Lease) -> str:
        up = self._live.machine.ranks_up
        down = [rank for rank in lease.state.ranks if not up[rank]]
        lost = self._lost(lease)
        if not down:
            return "all its ranks serve again"
        failed = f"chips {listed(lost)} have failed, " if lost else ""
        return f"{failed}ranks {listed(down)} stay down"

    def _enter(
        self, lease: Lease, event: HandoverEvent, reason: str, *, until_ns: int | None = None
    ) -> None:
        """Apply `event`; raises HandoverError for one that the table does not hold."""
        lease.take(event, now_ns=self._time.now_ns, until_ns=until_ns)
        self._live.kept_out = frozenset(
            chip
            for each in self._going_on
            if each.for_maintenance and each.phase is HandoverPhase.MAINTENANCE
            for chip in each.state.chips
        )
        lease.change(reason=reason, lost_chips=self._lost(lease))
        if event in (HandoverEvent.VACATED, HandoverEvent.EMPTIED, HandoverEvent.RESTORED):
            self._ledger.count_handover()
        if lease.phase is HandoverPhase.SERVING:
            self._going_on.remove(lease)
            self._forget_old()

    def _forget_old(self) -> None:
        ended = [
            number for number, each in self._leases.items() if each.phase is HandoverPhase.SERVING
        ]
        for number in ended[:-LEASES_KEPT]:
            del self._leases[number]

    def _lost(self, lease: Lease) -> tuple[int, ...]:
        works = self._live.actual.works
        return tuple(chip for chip in lease.state.chips if not works[chip])

    def _positions(self, lease: Lease) -> list[int]:
        machine = self._live.machine
        found = (machine.lent_position(chip) for chip in lease.state.chips)
        return [position for position in found if position is not None]
