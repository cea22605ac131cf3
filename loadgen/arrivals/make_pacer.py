"""Makes the pacer of an `ArrivalSpec`, and its description for reports."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.gaps import RenewalArrivals
from loadgen.arrivals.pacer import Pacer
from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.arrivals.rate_shape import CONCURRENCY_FORMS, RateShape, parse_rate
from loadgen.arrivals.schedule import ArrivalSchedule, by_rate, recorded
from loadgen.errors import OptionError
from loadgen.records.arrival_process import arrival_process
from loadgen.records.run_record import AskedArrivals

# Times of 100 million sessions are 0.8 GB; more is a slip of the hand, not a run.
SESSIONS_MAX: Final = 100_000_000


def make_pacer(
    spec: ArrivalSpec, *, sessions: int | None, recorded_ns: Sequence[int] | None, seed: int
) -> Pacer:
    """Make the pacer of a class of `sessions` (None: as many as the arrivals have times for).

    `recorded_ns` are the workload's recorded times, used without a rate and a concurrency. One seed
    gives one schedule, whose first sessions do not depend on their number. Raises OptionError for
    contradictory options or no end, FileError for an unusable file of rates.
    """
    _check(spec)
    if spec.concurrency is not None:
        return _closed_loop(spec, sessions)
    if spec.rate is not None:
        return _by_rate(spec, parse_rate(spec.rate), sessions, seed)
    if recorded_ns is None:
        raise OptionError("--rate", None, "a rate, a --concurrency or recorded times")
    times_ns = recorded_ns if sessions is None else recorded_ns[:sessions]
    return recorded(times_ns, speedup=spec.speedup, duration_s=spec.duration_s)


def asked(spec: ArrivalSpec, pacer: Pacer, *, time: str) -> AskedArrivals:
    """Describe `spec` and the schedule drawn by `pacer`, the undivided one.

    Drawn and sent schedules are described by the same arithmetic. `time` is "emulated" or "wall".
    """
    words = _words(spec, time)
    if isinstance(pacer, ArrivalSchedule):
        found = arrival_process(pacer.due_ns)
        return AskedArrivals(
            words=words,
            time=time,
            rate_per_s=found.rate_per_s,
            gap_cv=found.gap_cv,
            dispersion=found.dispersion,
            asked_rate_per_s=_asked_rate_per_s(pacer),
            asked_gap_cv=_asked_gap_cv(spec, pacer),
        )
    assert isinstance(pacer, ClosedLoop)
    most = int(max(pacer.concurrency.rates_per_s))
    return AskedArrivals(words=words, time=time, concurrency=most)


def _asked_rate_per_s(schedule: ArrivalSchedule) -> float | None:
    """The rate; of a changing one, its mean from the start to the last session."""
    rate = schedule.rate
    if rate is None:
        return None
    if rate.constant_per_s is not None:
        return rate.constant_per_s
    last_s = schedule.due_ns[-1:] / 1e9  # [1], or [0] without sessions
    return float(rate.cumulative(last_s)[0] / last_s[0]) if last_s.any() else None


def _asked_gap_cv(spec: ArrivalSpec, schedule: ArrivalSchedule) -> float | None:
    if schedule.rate is None or schedule.rate.constant_per_s is None:
        return None
    spreads = {"constant": 0.0, "poisson": 1.0, "gamma": float(np.sqrt(1 / spec.burstiness))}
    return spreads[spec.gaps]


def _check(spec: ArrivalSpec) -> None:
    """Refuse numbers out of range and contradictory options."""
    if spec.rate is not None and spec.concurrency is not None:
        raise OptionError("--concurrency", spec.concurrency, "not both it and --rate")
    if not 0 < spec.burstiness < np.inf:
        raise OptionError("--burstiness", spec.burstiness, "more than 0")
    if spec.burstiness != 1 and spec.gaps != "gamma":
        raise OptionError("--burstiness", spec.burstiness, "--arrivals gamma with it")
    if not 0 < spec.speedup < np.inf:
        raise OptionError("--speedup", spec.speedup, "more than 0")
    if spec.speedup != 1 and (spec.rate is not None or spec.concurrency is not None):
        raise OptionError(
            "--speedup", spec.speedup, "recorded times, neither --rate nor --concurrency"
        )
    if spec.duration_s is not None and not 0 < spec.duration_s < np.inf:
        raise OptionError("--duration", spec.duration_s, "more than 0 s")


def _by_rate(
    spec: ArrivalSpec, rate: RateShape, sessions: int | None, seed: int
) -> ArrivalSchedule:
    duration_s = spec.duration_s
    if sessions is None and duration_s is None:
        duration_s = rate.end_s  # what was written as a series of times ends with it
    if sessions is None and duration_s is None:
        raise OptionError("--rate", spec.rate, "--requests or --duration with it")
    most = sessions if sessions is not None else rate.cumulative(np.array([duration_s]))[0]
    if most > SESSIONS_MAX:
        raise OptionError(
            "--rate", spec.rate, f"at most {SESSIONS_MAX:,} sessions, not {most:,.0f}"
        )
    arrivals = RenewalArrivals(spec.gaps, burstiness=spec.burstiness, seed=seed)
    schedule = by_rate(arrivals, rate, sessions=sessions, duration_s=duration_s)
    if sessions != 0 and not schedule.due_ns.size:
        raise OptionError("--rate", spec.rate, "a session within the --duration")
    return schedule


def _closed_loop(spec: ArrivalSpec, sessions: int | None) -> ClosedLoop:
    assert spec.concurrency is not None
    if sessions is None and spec.duration_s is None:
        raise OptionError("--concurrency", spec.concurrency, "--requests or --duration with it")
    shape = parse_rate(spec.concurrency, option="--concurrency", forms=CONCURRENCY_FORMS)
    if not isinstance(shape, PiecewiseLinear) or min(shape.rates_per_s) < 1:
        raise OptionError("--concurrency", spec.concurrency, CONCURRENCY_FORMS)
    ends_ns = None if spec.duration_s is None else round(spec.duration_s * 1e9)
    return ClosedLoop(concurrency=shape, sessions=sessions, ends_ns=ends_ns)


def _words(spec: ArrivalSpec, time: str) -> str:
    """Name the arrivals in words: `Poisson, 4 per emulated s`."""
    if spec.concurrency is not None:
        words = f"closed loop, {spec.concurrency} sessions in flight"
    elif spec.rate is not None:
        gaps = {
            "constant": "even gaps",
            "poisson": "Poisson",
            "gamma": f"gamma gaps (burstiness {spec.burstiness:g})",
        }[spec.gaps]
        words = f"{gaps}, {spec.rate} per {time} s"
    elif spec.speedup != 1:
        words = f"recorded times, {spec.speedup:g} times as fast"
    else:
        words = "recorded times"
    return words if spec.duration_s is None else f"{words}, for {spec.duration_s:g} s"
