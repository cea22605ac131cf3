"""A sweep: runs at rising loads until the server is saturated, then the search for the limit.

How a run is done is an argument, so that the decisions here can be held against servers whose
knee and limit are known.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from loadgen.durations import duration_words
from loadgen.errors import LoadError
from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import (
    BestLoad,
    BoundShare,
    Measured,
    SaturationFound,
    SweepPoint,
    SweepRecord,
    Verdict,
)
from loadgen.runs.options import RunOptions
from loadgen.sweeps.bound_shares import Held, bound_share, held, samples_needed, verdict_of
from loadgen.sweeps.figures import point_figures
from loadgen.sweeps.knee import find_knee
from loadgen.sweeps.limit_search import LimitSearch, Standing
from loadgen.sweeps.load_grid import load_words
from loadgen.sweeps.options import ERROR_SHARE, SweepOptions
from loadgen.sweeps.pareto import pareto_front
from loadgen.sweeps.saturation import no_more_throughput, saturation

RUNS_MAX: Final = 100
"""Of the search: more than any sweep needs that closes in at all."""

RunAt = Callable[[RunOptions, str], Awaitable[RunRecord]]
"""Does one run; the text says which, for people."""


@dataclass(kw_only=True)
class _Known:
    """What is known so far; `helds` are by load, then one row of all bounds for each run."""

    points: list[SweepPoint] = field(default_factory=list)
    helds: dict[float, list[tuple[Held, ...]]] = field(default_factory=dict)
    standings: dict[float, Standing] = field(default_factory=dict)
    stopped: str = ""
    interrupted: bool = False
    problem: str = ""
    first: RunRecord | None = None
    time: str = "wall"


async def run_sweep(
    options: SweepOptions, run_at: RunAt, *, command: str, say: Callable[[str], None]
) -> SweepRecord:
    """Do the whole sweep; `say` takes a line for each step.

    A run that is interrupted, or that cannot be done, ends the sweep, which then says what it has;
    the first run's LoadError is raised.
    """
    known = _Known()
    for note in _notes(options):
        say(note)
    try:
        await _grid(options, run_at, known, say)
        if options.levels and not known.interrupted:
            await _search(options, run_at, known, say)
    except asyncio.CancelledError:  # Ctrl-C between two runs
        if not known.points:
            raise
        known.interrupted, known.stopped = True, "ended between two runs"
    except LoadError as error:
        if not known.points:
            raise
        known.problem = known.stopped = f"a run could not be done: {error}"
        say(f"stops: {known.stopped}")
    best = _best(options, known) if options.levels else None
    return _record(options, known, best, command)


async def _grid(
    options: SweepOptions, run_at: RunAt, known: _Known, say: Callable[[str], None]
) -> None:
    """Run the loads that were asked for, rising, until the server is saturated."""
    for load in options.loads:
        point = await _one(options, run_at, known, load, say)
        if not known.interrupted:
            known.stopped = _reason_to_stop(options, known, point)
        if known.stopped:
            say(f"stops: {known.stopped}")
            return
    known.stopped = "every load was run"


def _reason_to_stop(options: SweepOptions, known: _Known, point: SweepPoint) -> str:
    """Why no higher load is run after this one; empty if there is no reason."""
    load = load_words(point.load)
    if point.figures.requests_per_s is None:
        return f"at {load} no request was completed"
    if point.saturation.over:
        return f"over-saturated at {load}: {point.saturation.words}"
    if options.axis == "concurrency" and _goes_no_further(known, point.load):
        return f"at {load} more concurrency no longer brings more throughput"
    return ""


def _goes_no_further(known: _Known, load: float) -> bool:
    """Whether a closed loop is wide enough: for the throughput, and for an SLO too."""
    standing = known.standings.get(load)
    if standing is not None and standing.leans_kept:
        return False
    return no_more_throughput(known.points)


async def _search(
    options: SweepOptions, run_at: RunAt, known: _Known, say: Callable[[str], None]
) -> None:
    """Close in on the highest load that keeps the SLO; repeat what stays undecided."""
    if all(point.figures.requests_per_s is None for point in known.points):
        return
    search = LimitSearch(axis=options.axis, lowest=options.loads[0], precision=options.precision)
    for _ in range(RUNS_MAX):
        load = search.next_load(known.standings)
        if load is None or known.interrupted:
            return
        await _one(options, run_at, known, load, say, stage="search")
    known.stopped = f"{known.stopped}; the search was given up after {RUNS_MAX} runs"


async def _one(
    options: SweepOptions,
    run_at: RunAt,
    known: _Known,
    load: float,
    say: Callable[[str], None],
    stage: Literal["grid", "search"] = "grid",
) -> SweepPoint:
    """Do one run and keep what it says."""
    repeat = len(known.helds.get(load, ()))
    asked = options.at(load, position=len(known.points), repeat=repeat)
    words = f"{options.axis} {load_words(load)}"
    record = await run_at(asked, words)
    measures = measure_run(record)
    closed = options.axis == "concurrency"
    found = saturation(record, closed=closed)
    bounds, verdict = _judged(options, known, load, record, found)
    assert asked.results is not None
    point = SweepPoint(
        load=load,
        stage=stage,
        results=asked.results.name,
        seed=asked.seed,
        requests=measures.total.requests,
        figures=point_figures(measures),
        saturation=found,
        bounds=bounds,
        verdict=verdict,
        warnings=measures.warnings,
    )
    known.points.append(point)
    known.time = measures.time
    known.first = known.first or replace(record, results=())
    if record.end is None or record.end.interrupted:
        known.interrupted, known.stopped = True, f"the run at {load_words(load)} was cut short"
    say(point_words(point, options.axis))
    return point


def _judged(
    options: SweepOptions, known: _Known, load: float, record: RunRecord, found: SaturationFound
) -> tuple[tuple[BoundShare, ...], Verdict | None]:
    """Judge a load by all its runs; a saturated one is missed: it only gets later with time."""
    pairs = [(name, bound) for name, level in options.levels for bound in level.bounds]
    if not pairs or record.end is None or record.end.interrupted:
        return (), None
    row = tuple(held(record, name, bound) for name, bound in pairs)
    rows = known.helds.setdefault(load, [])
    rows.append(row)
    bounds = tuple(
        bound_share(
            [each[index] for each in rows], traffic_class=name, bound=bound, tail=options.tail
        )
        for index, (name, bound) in enumerate(pairs)
    )
    verdict: Verdict = "missed" if found.over else verdict_of(bounds)
    known.standings[load] = Standing(
        verdict=verdict,
        seems_kept=all(bound.share >= bound.needed for bound in bounds),
        may_repeat=len(rows) < options.looks,
    )
    return bounds, verdict


def point_words(point: SweepPoint, axis: str) -> str:
    """A line on one run, as it ends."""
    figures = point.figures
    parts = [f"{axis} {load_words(point.load)}:"]
    if figures.requests_per_s is None:
        parts.append("no request completed")
    else:
        parts.append(f"{figures.requests_per_s.value:.4g} requests/s")
    for name, measured in (("TTFT", figures.ttft_p99_ms), ("E2E", figures.e2e_p99_ms)):
        if measured is not None:
            parts.append(f"{name} p99 {duration_words(float(f'{measured.value / 1e3:.3g}'))}")
    if point.saturation.over is not False:
        parts.append(point.saturation.words)
    for bound in point.bounds:
        parts.append(
            f"{bound.words} {bound.verdict}: {bound.share:.2%} within "
            f"({bound.low:.2%} to {bound.high:.2%})"
        )
    return f"{parts[0]} {', '.join(parts[1:])}"


def _notes(options: SweepOptions) -> list[str]:
    """What can be said before the first run."""
    notes = []
    varied = next(each for each in options.run.classes if each.name == options.vary)
    if varied.slo is not None and varied.workload.sessions is not None:
        needed = samples_needed(varied.slo, tail=options.tail)
        most = varied.workload.sessions * sum(options.growth(each) for each in range(options.looks))
        if most < needed:
            notes.append(
                f"to be sure of {varied.slo.words} at a load takes {needed:,} requests without a "
                f"miss, and all repeats together have {most:,}: no load can be found to keep it; "
                "give more --requests or --repeats"
            )
    return notes


def _best(options: SweepOptions, known: _Known) -> BestLoad:
    search = LimitSearch(axis=options.axis, lowest=options.loads[0], precision=options.precision)
    found = search.bracket(known.standings)
    slo = "; ".join(
        level.words if len(options.run.classes) == 1 else f"{name}: {level.words}"
        for name, level in options.levels
    )
    if found.kept is None:
        words = "no load that was tried kept it with confidence"
    elif found.above is None:
        words = "every load that was tried kept it: more may do so too"
    else:
        how = (
            "could not be told"
            if known.standings[found.above].verdict == "undecided"
            else "missed it"
        )
        words = f"kept with confidence; {load_words(found.above)} {how}"
    return BestLoad(
        load=found.kept,
        above=found.above,
        slo=slo,
        confidence=1 - ERROR_SHARE,
        words=words if not known.interrupted else f"{words} (interrupted)",
    )


def _record(
    options: SweepOptions, known: _Known, best: BestLoad | None, command: str
) -> SweepRecord:
    assert known.first is not None
    header = known.first.header
    workload = next(each.workload for each in header.classes if each.name == options.vary)
    points = tuple(known.points)
    rates = [point.figures.requests_per_s for point in points]
    return SweepRecord(
        command=command,
        url=header.url,
        model=header.model,
        axis=options.axis,
        time=known.time,
        workload=workload,
        started_at=header.started_at,
        points=points,
        stopped=known.stopped,
        knee=find_knee(points),
        best=best,
        highest_requests_per_s=_highest(rates),
        pareto_per_mw=pareto_front(
            [_pair(point, point.figures.tokens_per_s_per_mw) for point in points]
        ),
        pareto_per_chip=pareto_front(
            [_pair(point, point.figures.tokens_per_s_per_chip) for point in points]
        ),
        interrupted=known.interrupted,
        problem=known.problem,
        notes=tuple(_notes(options)),
    )


def _highest(rates: Sequence[Measured | None]) -> Measured | None:
    return max(
        (rate for rate in rates if rate is not None), key=lambda rate: rate.value, default=None
    )


def _pair(point: SweepPoint, tokens_per_s: float | None) -> tuple[float, float] | None:
    interactivity = point.figures.interactivity_p50
    if interactivity is None or tokens_per_s is None:
        return None
    return interactivity.value, tokens_per_s
