"""A sweep: runs at rising loads until the server is saturated, then the search for the limit.

The function that does a run is an argument, so that decisions are tested against servers with a
known knee and limit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from loadgen.durations import duration_words
from loadgen.errors import LoadError
from loadgen.measures.measurement import measure_run
from loadgen.measures.run_measures import Distribution, RunMeasures
from loadgen.records.estimate import Estimate
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import (
    BoundShare,
    PointFigures,
    SaturationFound,
    SweepPoint,
    SweepRecord,
    Verdict,
)
from loadgen.runs.options import RunOptions
from loadgen.sweeps.bound_shares import bound_share, held, verdict_of
from loadgen.sweeps.conclusion import Known, concluded, notes
from loadgen.sweeps.limit_search import LimitSearch, Standing
from loadgen.sweeps.load_grid import load_words
from loadgen.sweeps.options import SweepOptions
from loadgen.sweeps.saturation import no_more_throughput, saturation


def point_figures(measures: RunMeasures) -> PointFigures:
    """The figures of all classes together."""
    total = measures.total
    of, rates = total.distributions, total.rates
    failed = rates.get("failed_share")
    return PointFigures(
        requests_per_s=rates.get("requests_per_s"),
        sent_per_s=total.arrivals.rate_per_s,
        output_tokens_per_s=rates.get("output_tokens_per_s"),
        goodput_per_s=rates.get("goodput_per_s"),
        ttft_p50_ms=_percentile(of, "ttft_ms", 50.0),
        ttft_p99_ms=_percentile(of, "ttft_ms", 99.0),
        tpot_p50_ms=_percentile(of, "tpot_ms", 50.0),
        tpot_p99_ms=_percentile(of, "tpot_ms", 99.0),
        e2e_mean_ms=of["e2e_ms"].mean if "e2e_ms" in of else None,
        e2e_p50_ms=_percentile(of, "e2e_ms", 50.0),
        e2e_p99_ms=_percentile(of, "e2e_ms", 99.0),
        interactivity_p50=_percentile(of, "interactivity", 50.0),
        tokens_per_s_per_mw=measures.energy.output_tokens_per_s_per_mw,
        tokens_per_s_per_chip=measures.energy.tokens_per_s_per_chip,
        average_watts=measures.energy.average_watts,
        failed_share=0.0 if failed is None else failed.value,
    )


def _percentile(of: Mapping[str, Distribution], name: str, percentile: float) -> Estimate | None:
    return of[name].percentiles[percentile] if name in of else None


RUNS_MAX: Final = 100
"""Of the search: more than any converging sweep needs."""

RunAt = Callable[[RunOptions, str], Awaitable[RunRecord]]
"""Does one run; the text names it, for people."""


async def run_sweep(
    options: SweepOptions, run_at: RunAt, *, command: str, say: Callable[[str], None]
) -> SweepRecord:
    """Do the whole sweep; `say` takes a line for each step.

    An interrupted or failed run ends the sweep, whose record keeps the rest; the first run's
    LoadError is raised.
    """
    known = await _Sweep(options, run_at, say).run()
    return concluded(options, known, command=command)


class _Sweep:
    """A sweep under way."""

    def __init__(self, options: SweepOptions, run_at: RunAt, say: Callable[[str], None]) -> None:
        self._options = options
        self._run_at = run_at
        self._say = say
        self._known = Known()

    async def run(self) -> Known:
        known = self._known
        for note in notes(self._options):
            self._say(note)
        try:
            await self._grid()
            if self._options.levels and not known.cut_short:
                await self._search()
        except asyncio.CancelledError:  # Ctrl-C between two runs
            if not known.points:
                raise
            known.interrupted, known.stopped = True, "ended between two runs"
        except LoadError as error:
            if not known.points:
                raise
            known.problem = known.stopped = f"a run could not be done: {error}"
            self._say(f"stops: {known.stopped}")
        return known

    async def _grid(self) -> None:
        """Run the given loads, rising, until the server is saturated."""
        known = self._known
        for load in self._options.loads:
            point = await self._point(load)
            if not known.cut_short:
                known.stopped = self._reason_to_stop(point)
            if known.stopped:
                self._say(f"stops: {known.stopped}")
                return
        known.stopped = "every load was run"

    def _reason_to_stop(self, point: SweepPoint) -> str:
        """The reason to run no higher load; empty without one."""
        load = load_words(point.load)
        if point.figures.requests_per_s is None:
            return f"at {load} no request was completed"
        if point.saturation.over:
            return f"over-saturated at {load}: {point.saturation.words}"
        if self._options.axis == "concurrency" and self._goes_no_further(point.load):
            return f"at {load} more concurrency no longer brings more throughput"
        return ""

    def _goes_no_further(self, load: float) -> bool:
        """Whether more concurrency brings no throughput, and no SLO is kept either."""
        standing = self._known.standings.get(load)
        if standing is not None and standing.leans_kept:
            return False
        return no_more_throughput(self._known.points)

    async def _search(self) -> None:
        """Close in on the highest load that keeps the SLO; repeat undecided ones."""
        known, options = self._known, self._options
        if all(point.figures.requests_per_s is None for point in known.points):
            return
        search = LimitSearch(
            axis=options.axis, lowest=options.loads[0], precision=options.precision
        )
        for _ in range(RUNS_MAX):
            load = search.next_load(known.standings)
            if load is None or known.cut_short:
                return
            await self._point(load, stage="search")
        known.stopped = f"{known.stopped}; the search was given up after {RUNS_MAX} runs"

    async def _point(self, load: float, stage: Literal["grid", "search"] = "grid") -> SweepPoint:
        """Do one run and keep its figures; raises LoadError if their time is another."""
        known, options = self._known, self._options
        repeat = len(known.helds.get(load, ()))
        asked = options.at(load, position=len(known.points), repeat=repeat)
        assert asked.results is not None
        record = await self._run_at(asked, f"{options.axis} {load_words(load)}")
        measures = measure_run(record)
        if known.first is not None and measures.time != known.time:
            raise LoadError(
                f"{asked.results}: its figures are in {measures.time} time and those of the runs "
                f"before in {known.time} time: the server's clock has changed"
            )
        found = saturation(record, closed=options.axis == "concurrency")
        bounds, verdict = self._judged(load, record, found)
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
        known.time, known.first = measures.time, known.first or record.header
        if _cut_short(record):
            known.cut_short = True
            known.problem = "" if record.end is None else record.end.problem
            known.interrupted = not known.problem
            why = f": {known.problem}" if known.problem else ""
            known.stopped = f"the run at {load_words(load)} was cut short{why}"
        self._say(point_words(point, options.axis))
        return point

    def _judged(
        self, load: float, record: RunRecord, found: SaturationFound
    ) -> tuple[tuple[BoundShare, ...], Verdict | None]:
        """Judge a load by all its runs; a saturated one is missed: it only gets later."""
        known, options = self._known, self._options
        pairs = [(name, bound) for name, level in options.levels for bound in level.bounds]
        if not pairs or _cut_short(record):
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
            may_repeat=len(rows) < options.repeats,
        )
        return bounds, verdict


def _cut_short(record: RunRecord) -> bool:
    return record.end is None or record.end.interrupted or bool(record.end.problem)


def point_words(point: SweepPoint, axis: str) -> str:
    """One run in a line."""
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
