"""The job's work on each lease's chips, summed from its status.

A killed job counts from its checkpoint again; steps taken twice are work, and energy, twice.
"""

from dataclasses import dataclass, fields

from emulator.units import NS_PER_S
from serving.server.training.job_status import JobStatus
from serving.wire.control_call import TrainingNote
from serving.wire.machine_state import LeaseState, TrainingTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    steps: int = 0
    tokens: int = 0
    joules: float = 0.0
    emulated_s: float = 0.0
    lag_s: float = 0.0
    computed_steps: int = 0
    computed_tokens: int = 0

    @classmethod
    def of(cls, status: JobStatus) -> "_Counts":
        return cls(
            steps=status.trained_steps,
            tokens=status.trained_tokens,
            joules=status.joules,
            emulated_s=status.emulated_ns / NS_PER_S,
            lag_s=status.lag_ns / NS_PER_S,
            computed_steps=status.step,
            computed_tokens=status.tokens,
        )

    def plus_rise(self, before: "_Counts", now: "_Counts") -> "_Counts":
        """Adds the increase since `before`, unless the job begins again."""
        if now.computed_steps < before.computed_steps:
            return self
        rises = {
            each.name: getattr(self, each.name)
            + max(getattr(now, each.name) - getattr(before, each.name), 0)
            for each in fields(self)
        }
        return _Counts(**rises)


class LeaseNotes:
    """Lives as long as its engine's leases."""

    def __init__(self) -> None:
        self._seen: dict[int, _Counts] = {}  # the job's own counts, by lease, when last looked at
        self._totals: dict[int, _Counts] = {}
        self._sent: dict[int, TrainingNote] = {}

    def begin(self, lease: LeaseState, status: JobStatus | None) -> None:
        """Count from `status` on, if not yet counted."""
        if lease.number not in self._seen:
            self._seen[lease.number] = _Counts() if status is None else _Counts.of(status)
            self._totals[lease.number] = _Counts()

    def note(self, lease: LeaseState, status: JobStatus, *, share: float) -> TrainingNote | None:
        """A new note for the engine, or None; `share` of the job's chips are the lease's."""
        now = _Counts.of(status)
        totals = self._totals[lease.number].plus_rise(self._seen[lease.number], now)
        self._seen[lease.number], self._totals[lease.number] = now, totals
        told = TrainingNote(
            lease=lease.number,
            totals=TrainingTotals(
                steps=totals.steps,
                tokens=round(totals.tokens * share),
                loss=status.loss,
                joules=totals.joules * share,
                emulated_s=totals.emulated_s,
                lag_s=totals.lag_s,
                computed_steps=totals.computed_steps,
                computed_tokens=round(totals.computed_tokens * share),
                watts=status.watts * share,
                hbm_bytes_per_chip=status.hbm_bytes_per_chip,
            ),
        )
        if told == self._sent.get(lease.number):
            return None
        self._sent[lease.number] = told
        return told
