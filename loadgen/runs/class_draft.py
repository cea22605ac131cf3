"""A traffic class before the server is asked: its trace, and perhaps its times.

All errors in a class's options or files are found here.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.make_pacer import make_pacer
from loadgen.arrivals.pacer import Pacer
from loadgen.errors import OptionError
from loadgen.runs.options import ClassOptions
from loadgen.workloads.trace_file import Trace, read_trace

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

    options: ClassOptions
    seed: int
    sessions: int | None
    trace: Trace | None
    pacer: Pacer | None


def draft_class(options: ClassOptions, *, seed: int) -> ClassDraft:
    """Draft a class; arrivals or workload give the number of sessions for both.

    Raises LoadError for contradictions, or an unusable file.
    """
    spec, arrivals = options.workload, options.arrivals
    timed = arrivals.rate is not None or arrivals.concurrency is not None
    sessions = spec.sessions
    pacer: Pacer | None = None
    if timed and sessions is None and (spec.trace is None or arrivals.duration_s is not None):
        pacer = make_pacer(arrivals, sessions=None, recorded_ns=None, seed=seed)
        sessions = pacer.sessions
        if isinstance(pacer, ClosedLoop):
            sessions = _closed_loop_sessions(pacer)
    if sessions == 0:
        raise OptionError("--duration", arrivals.duration_s, expected="time for one")
    trace = read_trace(spec, sessions=sessions)
    return ClassDraft(options=options, seed=seed, sessions=sessions, trace=trace, pacer=pacer)


def _closed_loop_sessions(pacer: ClosedLoop) -> int:
    assert pacer.ends_ns is not None, "a closed loop ends by a number or by a time"
    most = float(np.max(pacer.concurrency.rates_per_s)) * pacer.ends_ns / 1e9 / SESSION_S_MIN
    return int(min(SESSIONS_MAX, max(SESSIONS_MIN, most)))
