"""The faults since the start, how far the engine is with each, and what recovering took."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from emulator.errors import ConfigError
from emulator.specs.fault import Fault
from serving.metrics.machine_state import FaultRecord, FaultStage, Recovery

RECORDS_MAX = 10_000
"""Records that are kept; a run with more faults is refused the next, so that none is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a settlement took in time and weights; requests are counted when they have moved."""

    emulated_ns: int
    wall_s: float
    experts_reloaded: int


class FaultLog:
    """Numbered from 1 in the order in which they happened."""

    def __init__(self) -> None:
        self._records: list[FaultRecord] = []
        self._open: list[int] = []  # recovered, but their requests not yet counted

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> tuple[FaultRecord, ...]:
        """All faults."""
        return tuple(self._records)

    def check_room(self) -> None:
        """Raise ConfigError when no more faults can be noted."""
        if len(self._records) >= RECORDS_MAX:
            raise ConfigError(
                field="faults", value=len(self), expected=f"at most {RECORDS_MAX:,} in one run"
            )

    def add(self, fault: Fault, *, emulated_s: float, survivable: bool, reason: str) -> int:
        """Note a fault that has happened; returns its number."""
        number = len(self._records) + 1
        self._records.append(
            FaultRecord(
                number=number,
                fault=fault,
                injected_emulated_s=emulated_s,
                survivable=survivable,
                reason=reason,
                stage=FaultStage.PENDING,
                recovery=None,
                healed_emulated_s=None,
            )
        )
        return number

    @property
    def pending(self) -> list[FaultRecord]:
        """Faults that no step has met yet."""
        return [record for record in self._records if record.stage is FaultStage.PENDING]

    def settle(self, outcome: Outcome, *, survived: bool) -> None:
        """All pending faults have been met together."""
        stage = FaultStage.RECOVERED if survived else FaultStage.FAILED
        for record in self.pending:
            recovery = Recovery(
                emulated_ns=outcome.emulated_ns,
                wall_s=outcome.wall_s,
                requests_moved=0,
                requests_failed=0,
                experts_reloaded=outcome.experts_reloaded,
            )
            self._replace(record.number, stage=stage, recovery=recovery)
            self._open.append(record.number)

    def count_requests(self, *, moved: int, failed: int) -> None:
        """What became of the requests of the faults that were settled last."""
        for number in self._open:
            recovery = self._records[number - 1].recovery
            assert recovery is not None
            counted = msgspec.structs.replace(
                recovery, requests_moved=moved, requests_failed=failed
            )
            before = self._records[number - 1].stage
            stage = FaultStage.FAILED if failed and before is FaultStage.RECOVERED else before
            self._replace(number, recovery=counted, stage=stage)
        self._open = []

    def heal(self, numbers: Iterable[int], *, emulated_s: float) -> tuple[int, ...]:
        """The faults of these numbers are repaired; returns those that were not before."""
        healed = []
        for number in numbers:
            if self._records[number - 1].stage is not FaultStage.HEALED:
                self._replace(number, stage=FaultStage.HEALED, healed_emulated_s=emulated_s)
                healed.append(number)
        return tuple(healed)

    def _replace(self, number: int, **changes: object) -> None:
        self._records[number - 1] = msgspec.structs.replace(self._records[number - 1], **changes)
