"""A traffic class before its texts are made: its trace, sessions and times.

All errors in a class's options or files are found here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.make_pacer import make_pacer
from loadgen.arrivals.pacer import Pacer
from loadgen.errors import OptionError
from loadgen.workloads.plan import plan_single_requests, plan_workload
from loadgen.workloads.session_plan import SingleRequests, WorkloadPlan
from loadgen.workloads.sharegpt import Conversations
from loadgen.workloads.trace_file import Trace, read_trace
from loadgen.workloads.workload_spec import WorkloadSpec

# How many sessions to make for a closed loop that only time ends. Assumed: none takes less than a
# quarter of a second. If they do, the workload is sent again, which the report says.
SESSION_S_MIN: Final = 0.25
SESSIONS_MIN: Final = 1_000
SESSIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassDraft:
    """A class with its trace read.

    `sessions` is how many to plan, None for all of the trace; `pacer` is None if times depend on
    the plan.
    """

    workload: WorkloadSpec
    arrivals: ArrivalSpec
    seed: int
    sessions: int | None
    trace: Trace | None
    pacer: Pacer | None

    @property
    def texts(self) -> tuple[str, ...]:
        """Recorded texts, whose tokens a plan needs."""
        return self.trace.texts if isinstance(self.trace, Conversations) else ()

    def counted(self, counts: Sequence[int]) -> Self:
        """A copy with the tokens of each of `texts`."""
        if not isinstance(self.trace, Conversations):
            return self
        return replace(self, trace=self.trace.counted(counts))

    def planned(self) -> tuple[WorkloadPlan, Pacer]:
        """Plan sessions and times; `texts` must have been counted. Raises LoadError."""
        plan = plan_workload(
            self.workload,
            sessions=self.sessions,
            seed=self.seed,
            trace=self.trace,
            pool=self.pacer is not None and self.pacer.sessions is None,
        )
        return plan, self._pacer(len(plan.sessions), plan.arrivals_ns)

    def planned_as_columns(self) -> tuple[SingleRequests, Pacer] | None:
        """Plan lengths and times of single requests; None for other sessions. Raises LoadError."""
        plan = plan_single_requests(
            self.workload, sessions=self.sessions, seed=self.seed, trace=self.trace
        )
        if plan is None:
            return None
        return plan, self._pacer(len(plan.input_tokens), plan.arrivals_ns)

    def _pacer(self, sessions: int, recorded_ns: Sequence[int] | None) -> Pacer:
        if self.pacer is not None:
            return self.pacer
        timed = self.arrivals.rate is not None or self.arrivals.concurrency is not None
        if not timed and self.trace is not None and sessions > len(self.trace):
            rows = f"the rows of {self.workload.trace}"
            expected = f"at most {len(self.trace):,}, {rows}, or a --rate"
            raise OptionError("--requests", sessions, expected)
        return make_pacer(self.arrivals, sessions=sessions, recorded_ns=recorded_ns, seed=self.seed)


def draft_class(spec: WorkloadSpec, arrivals: ArrivalSpec, *, seed: int) -> ClassDraft:
    """Draft a class; arrivals or workload give the number of sessions for both.

    Raises LoadError for contradictions, or an unusable file.
    """
    timed = arrivals.rate is not None or arrivals.concurrency is not None
    sessions = spec.sessions
    pacer: Pacer | None = None
    if timed and sessions is None and (spec.trace is None or arrivals.duration_s is not None):
        pacer = make_pacer(arrivals, sessions=None, recorded_ns=None, seed=seed)
        sessions = pacer.sessions
        if isinstance(pacer, ClosedLoop):
            sessions = _closed_loop_sessions(pacer)
    if sessions == 0:
        raise OptionError("--duration", arrivals.duration_s, "time for one")
    trace = read_trace(spec, sessions=sessions, seed=seed)
    return ClassDraft(
        workload=spec, arrivals=arrivals, seed=seed, sessions=sessions, trace=trace, pacer=pacer
    )


def class_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the classes, the first the run's: with one seed lengths and gaps would be alike."""
    others = [np.random.SeedSequence((seed, at)) for at in range(1, count)]
    return [seed, *(int(each.generate_state(1)[0]) for each in others)]


def _closed_loop_sessions(pacer: ClosedLoop) -> int:
    assert pacer.ends_ns is not None, "a closed loop ends by a number or by a time"
    most = float(np.max(pacer.concurrency.rates_per_s)) * pacer.ends_ns / 1e9 / SESSION_S_MIN
    return int(min(SESSIONS_MAX, max(SESSIONS_MIN, most)))


def unpaced_words(arrivals: ArrivalSpec, pacer: Pacer, planned: int) -> Iterator[str]:
    """Warn of `planned` sessions without times: the rate falls to 0."""
    paced = planned if pacer.sessions is None else min(pacer.sessions, planned)
    if arrivals.duration_s is None and paced < planned:
        yield (
            f"the rate falls to 0 after {paced:,} of {planned:,} sessions: the others are not sent"
        )
