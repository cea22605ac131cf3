"""One lease as the engine keeps it; every change of phase is an event of the hand-over's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from emulator.specs.hbm_usage import HbmOwner
from emulator.units import NS_PER_S
from serving.engine.scheduler_state import RankQueues
from serving.policy.day_night.handover import HandoverEvent, HandoverPhase, transition
from serving.wire.machine_state import FOR_MAINTENANCE, LeaseState


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """`until_ns` ends the wait of its phase; `requests` were on its ranks when the drain began;
    `lost` chips had failed when the return began; `weights` are the versions then read, by rank.
    """

    state: LeaseState
    needs: Mapping[HbmOwner, int]
    requests: int
    since_ns: int = 0
    until_ns: int = 0
    lost: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def phase(self) -> HandoverPhase:
        """Its group's phase of the hand-over."""
        return HandoverPhase(self.state.phase)

    @property
    def working_chips(self) -> tuple[int, ...]:
        """Its chips that have not failed."""
        return tuple(chip for chip in self.state.chips if chip not in self.state.lost_chips)

    @property
    def for_maintenance(self) -> bool:
        """Whether its chips leave for no job."""
        return self.state.purpose == FOR_MAINTENANCE

    def change(self, **changes: object) -> None:
        """Change fields of the shown state."""
        self.state = msgspec.structs.replace(self.state, **changes)

    def take(self, event: HandoverEvent, *, now_ns: int, until_ns: int | None = None) -> None:
        """Apply `event`; raises HandoverError for one that the table does not hold."""
        before = self.phase
        after = transition(before, event)
        if after is before:
            return
        self.since_ns = now_ns
        self.change(phase=str(after), since_emulated_s=now_ns / NS_PER_S)
        self.wait(until_ns)

    def wait(self, until_ns: int | None) -> None:
        """Set the end of its phase; None: until an event."""
        self.until_ns = self.since_ns if until_ns is None else until_ns
        self.change(until_emulated_s=None if until_ns is None else until_ns / NS_PER_S)


def new_lease_state(
    number: int, chips: tuple[int, ...], ranks: tuple[int, ...], reason: str, purpose: str
) -> LeaseState:
    """State of a lease whose chips have not begun to leave."""
    return LeaseState(
        number=number,
        chips=chips,
        ranks=ranks,
        phase=str(HandoverPhase.SERVING),
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
        purpose=purpose,
    )


def requests_on(ranks: Sequence[int], queues: Sequence[RankQueues]) -> int:
    """Requests of these ranks that have not ended, as of the last decision."""
    if not queues:
        return 0
    return sum(queues[rank].running + queues[rank].waiting for rank in ranks)


def listed(numbers: Sequence[int]) -> str:
    """Numbers in words."""
    return ", ".join(map(str, numbers)) or "none"
