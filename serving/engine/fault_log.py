"""The faults since the start: stage and recovery of each.

| stage | event | next |
|---|---|---|
| PENDING | `settle` | RECOVERING |
| RECOVERING | `finish`, survived | RECOVERED, or DEGRADED for a slow chip |
| RECOVERING | `finish`, not survived | FAILED |
| RECOVERED, DEGRADED | `credit` with failed requests | FAILED |
| any but HEALED | `heal` | HEALED |
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from serving.wire.control_call import FAULTS_TOLD_MAX
from serving.wire.machine_state import (
    REQUESTS_NAMED_MAX,
    FaultEvent,
    FaultRecord,
    FaultStage,
    Recovery,
)

RECORDS_MAX: Final = 10_000
"""Most faults of a run: the next is refused, so that none is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A request that left `rank`, which lost its KV or went down; `failed` if no other took it."""

    rank: int
    name: str
    failed: bool = False


class FaultLog:
    """Faults, numbered from 1 in the order in which they happened."""

    def __init__(
        self, ranks_up: Callable[[], int], *, wall_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ranks_up = ranks_up
        self._wall_s = wall_s
        self._records: list[FaultRecord] = []
        self._begun_wall_s: list[float] = []  # of each record
        self._survived: dict[int, bool] = {}  # of those that are recovering
        self._events: deque[FaultEvent] = deque(maxlen=FAULTS_TOLD_MAX)
        self.event_number = 0  # of the newest stage that a fault has reached

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> tuple[FaultRecord, ...]:
        """All faults."""
        return tuple(self._records)

    def events_after(self, number: int) -> tuple[FaultEvent, ...]:
        """Stages reached since that one, the last FAULTS_TOLD_MAX of them."""
        return tuple(event for event in self._events if event.number > number)

    def check_room(self) -> None:
        """Raise ConfigError when the log is full."""
        if len(self._records) >= RECORDS_MAX:
            raise ConfigError("faults", len(self), f"at most {RECORDS_MAX:,} in one run")

    def add(self, fault: Fault, *, emulated_s: float, survivable: bool, reason: str) -> int:
        """Record a fault; returns its number."""
        number = len(self._records) + 1
        record = FaultRecord(
            number=number,
            fault=fault,
            injected_emulated_s=emulated_s,
            survivable=survivable,
            reason=reason,
            stage=FaultStage.PENDING,
            recovery=None,
            healed_emulated_s=None,
        )
        self._records.append(record)
        self._begun_wall_s.append(self._wall_s())
        self._note(record, emulated_s)
        return number

    @property
    def pending(self) -> list[FaultRecord]:
        """Faults that no step has met yet."""
        return [record for record in self._records if record.stage is FaultStage.PENDING]

    @property
    def recovering(self) -> list[FaultRecord]:
        """Faults for which the machine stands still."""
        return [self._records[number - 1] for number in self._survived]

    def settle(
        self, *, emulated_s: float, duration_ns: int, experts_reloaded: int, survived: bool
    ) -> None:
        """Begin recovery from all pending faults, of `duration_ns`; `finish` ends it."""
        for record in self.pending:
            recovery = Recovery(
                emulated_ns=duration_ns,
                wall_s=self._wall_s() - self._begun_wall_s[record.number - 1],
                requests_moved=0,
                requests_failed=0,
                experts_reloaded=experts_reloaded,
            )
            self._survived[record.number] = survived
            self._enter(record.number, FaultStage.RECOVERING, emulated_s, recovery=recovery)

    def finish(self, *, emulated_s: float) -> None:
        """End the recovery: recovering faults are recovered, degraded or failed."""
        survived, self._survived = self._survived, {}
        for number, did in survived.items():
            record = self._records[number - 1]
            assert record.recovery is not None
            wall_s = self._wall_s() - self._begun_wall_s[number - 1]
            recovery = msgspec.structs.replace(record.recovery, wall_s=wall_s)
            slow = record.fault.kind is FaultKind.SLOW_CHIP
            stage = FaultStage.DEGRADED if slow else FaultStage.RECOVERED
            if not did or recovery.requests_failed:
                stage = FaultStage.FAILED
            self._enter(number, stage, emulated_s, recovery=recovery)

    def credit(self, number: int, moved: Iterable[Moved], *, emulated_s: float) -> None:
        """Count and name requests that a settled fault has moved."""
        record = self._records[number - 1]
        before = record.recovery
        assert before is not None, "a fault that moves requests is settled"
        names: dict[bool, list[str]] = {False: [], True: []}
        for each in moved:
            names[each.failed].append(each.name)
        recovery = msgspec.structs.replace(
            before,
            requests_moved=before.requests_moved + len(names[False]),
            requests_failed=before.requests_failed + len(names[True]),
            moved=(*before.moved, *names[False])[:REQUESTS_NAMED_MAX],
            failed=(*before.failed, *names[True])[:REQUESTS_NAMED_MAX],
        )
        went_on = (FaultStage.RECOVERED, FaultStage.DEGRADED)
        if names[True] and record.stage in went_on:
            self._enter(number, FaultStage.FAILED, emulated_s, recovery=recovery)
        else:
            self._replace(number, recovery=recovery)

    def heal(self, numbers: Iterable[int], *, emulated_s: float) -> tuple[int, ...]:
        """Mark faults as repaired; returns those that were not before."""
        healed = []
        for number in numbers:
            if self._records[number - 1].stage is not FaultStage.HEALED:
                self._survived.pop(number, None)
                self._enter(number, FaultStage.HEALED, emulated_s, healed_emulated_s=emulated_s)
                healed.append(number)
        return tuple(healed)

    def _enter(self, number: int, stage: FaultStage, emulated_s: float, **changes: object) -> None:
        self._replace(number, stage=stage, **changes)
        self._note(self._records[number - 1], emulated_s)

    def _note(self, record: FaultRecord, emulated_s: float) -> None:
        self.event_number += 1
        self._events.append(
            FaultEvent(
                number=self.event_number,
                emulated_s=emulated_s,
                ranks_up=self._ranks_up(),
                fault=record,
            )
        )

    def _replace(self, number: int, **changes: object) -> None:
        self._records[number - 1] = msgspec.structs.replace(self._records[number - 1], **changes)
