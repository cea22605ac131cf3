"""Conclusions of a sweep: the knee, the SLO's highest load, the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.records.run_record import RunHeader
from loadgen.records.sweep_record import BestLoad, SweepPoint, SweepRecord
from loadgen.sweeps.bound_shares import Held, samples_needed
from loadgen.sweeps.knee import find_knee
from loadgen.sweeps.limit_search import LimitSearch, Standing
from loadgen.sweeps.load_grid import load_words
from loadgen.sweeps.options import ERROR_SHARE, SweepOptions


@dataclass(kw_only=True)
class Known:
    """State of a sweep. `helds` are by load, then a row of all bounds per run; `first` is the first
    run's header, `time` that of its figures; `cut_short`: the last point's run was.
    """

    points: list[SweepPoint] = field(default_factory=list)
    helds: dict[float, list[tuple[Held, ...]]] = field(default_factory=dict)
    standings: dict[float, Standing] = field(default_factory=dict)
    stopped: str = ""
    interrupted: bool = False
    cut_short: bool = False
    problem: str = ""
    first: RunHeader | None = None
    time: str = "wall"

    @property
    def whole(self) -> tuple[SweepPoint, ...]:
        """Points with valid figures: a run cut short had less than the asked load."""
        return tuple(self.points[:-1] if self.cut_short else self.points)


def concluded(options: SweepOptions, known: Known, *, command: str) -> SweepRecord:
    """Make the record of a sweep with at least one run.

    A run cut short is a point, but nothing is concluded from it.
    """
    assert known.first is not None
    header, whole = known.first, known.whole
    rates = [each.figures.requests_per_s for each in whole]
    return SweepRecord(
        command=command,
        url=header.url,
        model=header.model,
        axis=options.axis,
        time=known.time,
        workload=next(each.workload for each in header.classes if each.name == options.vary),
        started_at=header.started_at,
        points=tuple(known.points),
        stopped=known.stopped,
        knee=find_knee(whole),
        best=_best(options, known) if options.levels else None,
        highest_requests_per_s=max(
            (rate for rate in rates if rate is not None), key=lambda rate: rate.value, default=None
        ),
        pareto_per_mw=pareto_front(
            [_pair(each, each.figures.tokens_per_s_per_mw) for each in whole]
        ),
        pareto_per_chip=pareto_front(
            [_pair(each, each.figures.tokens_per_s_per_chip) for each in whole]
        ),
        interrupted=known.interrupted,
        problem=known.problem,
        notes=notes(options),
    )


def notes(options: SweepOptions) -> tuple[str, ...]:
    """Warnings known before the first run."""
    varied = next(each for each in options.run.classes if each.name == options.vary)
    if varied.slo is None or varied.workload.sessions is None:
        return ()
    needed = samples_needed(varied.slo, tail=options.tail)
    most = varied.workload.sessions * sum(options.growth(each) for each in range(options.repeats))
    if most >= needed:
        return ()
    return (
        f"to be sure of {varied.slo.words} at a load takes {needed:,} requests without a "
        f"miss, and all repeats together have {most:,}: no load can be found to keep it; "
        "give more --requests or --repeats",
    )


def _best(options: SweepOptions, known: Known) -> BestLoad:
    search = LimitSearch(axis=options.axis, lowest=options.loads[0], precision=options.precision)
    found = search.bracket(known.standings)
    slo = "; ".join(
        level.words if len(options.run.classes) == 1 else f"{name}: {level.words}"
        for name, level in options.levels
    )
    ends = []
    if found.above is not None:
        undecided = known.standings[found.above].verdict == "undecided"
        how = "could not be told" if undecided else "missed it"
        ends.append(f"{load_words(found.above)} {how}")
    elif found.kept is not None:
        ends.append("none above was tried: more may do so too")
    if known.interrupted or known.problem:
        ends.append("the search was cut short")
    return BestLoad(
        load=found.kept,
        above=found.above,
        slo=slo,
        confidence=1 - ERROR_SHARE,
        words="; ".join(ends),
    )


def _pair(point: SweepPoint, tokens_per_s: float | None) -> tuple[float, float] | None:
    interactivity = point.figures.interactivity_p50
    if interactivity is None or tokens_per_s is None:
        return None
    return interactivity.value, tokens_per_s


def pareto_front(values: Sequence[tuple[float, float] | None]) -> tuple[int, ...]:
    """Positions of the undominated points, by the first figure, rising.

    More is better in both. A point is dominated by one at least as good in both and better in one;
    of equal points the first stays. Points without a figure are left out.
    """
    known = [(value, position) for position, value in enumerate(values) if value is not None]
    front: list[int] = []
    best = float("-inf")
    # From the best of the first figure downward, each has to bring more of the second.
    for (_, second), position in sorted(known, key=lambda each: (-each[0][0], -each[0][1])):
        if second > best:
            front.append(position)
            best = second
    return tuple(reversed(front))
