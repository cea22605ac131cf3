"""Decides which differences between two sides are beyond noise.

With three runs or more on a side, the runs show their own spread (Welch's test); with fewer, a
moving block bootstrap within a run stands for it. Two runs of the same requests are compared
pairwise: their blocks are drawn together, so that the requests' own effect cancels.

The false discovery rate over all figures is held at 5 % (Benjamini and Hochberg 1995): of equal
sides, 95 of 100 comparisons call no figure different, as far as the noise model holds. Short runs
show too little noise where requests queue, see `comparability.SHORT_RUN`; a note says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

from loadgen.errors import LoadError
from loadgen.measures.comparability import apart_settings, comparison_notes
from loadgen.measures.comparison import Comparison, Difference, Side, Verdict
from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES, Better
from loadgen.measures.replicas import Key, ReplicatedFigure, RunFigures
from loadgen.records.run_record import RunRecord

FALSE_DISCOVERIES: Final = 0.05
TAIL: Final = 0.025

RUNS_THAT_VARY: Final = 3
"""Runs from which on a side shows its own spread."""

_BETTER: Final[Mapping[str, Better]] = {
    each.name: each.better for each in (*DISTRIBUTIONS, *RATES, *ENERGY)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """From a to b, in the logarithm or (`linear`) the figure's own unit."""

    change: float
    variance: float
    freedom: float
    linear: bool


def compare(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Comparison:
    """Compare the runs of two sides, figure by figure.

    Raises LoadError for a side without runs, and for a mix of emulated and wall time.
    """
    if not a or not b:
        raise LoadError("a comparison needs a run on either side")
    times = {run.header.start.dilation is not None for run in (*a, *b)}
    if len(times) > 1:
        raise LoadError(
            "runs in emulated time cannot be compared with runs in wall time: "
            "one second is not the other"
        )
    paired = _paired(a, b)
    figures_a = _side(a, seeds=range(len(a)))
    figures_b = _side(b, seeds=range(0 if paired else len(a), len(a) + len(b)))
    changes = {
        key: _change([run.figures.get(key) for run in figures_a], sides, paired=paired)
        for key, sides in _by_key(figures_a, figures_b).items()
    }
    differences = [
        _difference(key, figures_a, figures_b, change) for key, change in changes.items()
    ]
    return Comparison(
        time="emulated" if times == {True} else "wall",
        a=_words(figures_a),
        b=_words(figures_b),
        differences=judged(differences),
        method=_method(len(a), len(b), paired=paired),
        apart=apart_settings(a, b),
        notes=tuple(
            comparison_notes(
                [run.measures for run in figures_a],
                [run.measures for run in figures_b],
                fewest=min(len(a), len(b)),
                enough=RUNS_THAT_VARY,
                simulated=all(run.header.simulated for run in (*a, *b)),
            )
        ),
    )


def _paired(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> bool:
    """Whether each side is one run and both sent the same requests, as far as is known."""
    if len(a) > 1 or len(b) > 1 or a[0].header.seed != b[0].header.seed:
        return False
    sent_a, sent_b = (
        [(each.name, each.workload, each.requests) for each in run.header.classes]
        for run in (a[0], b[0])
    )
    return sent_a == sent_b


def _side(runs: Sequence[RunRecord], *, seeds: Sequence[int]) -> list[RunFigures]:
    """Figures of each run; without replicas where several runs show the spread."""
    bootstrap = len(runs) < RUNS_THAT_VARY
    return [
        RunFigures.of(run, seed=seed if bootstrap else None)
        for run, seed in zip(runs, seeds, strict=False)
    ]


def _by_key(
    a: Sequence[RunFigures], b: Sequence[RunFigures]
) -> Mapping[Key, list[ReplicatedFigure | None]]:
    """Side b's figures by key, for every key of either side, a's order first."""
    keys = dict.fromkeys(key for run in (*a, *b) for key in run.figures)
    return {key: [run.figures.get(key) for run in b] for key in keys}


def _change(
    a: Sequence[ReplicatedFigure | None], b: Sequence[ReplicatedFigure | None], *, paired: bool
) -> _Change | None:
    """The change and its variance; None where either is unknown."""
    known_a = [figure for figure in a if figure is not None]
    known_b = [figure for figure in b if figure is not None]
    if len(known_a) < len(a) or len(known_b) < len(b):
        return None
    replicas = [each.replicas for each in (*known_a, *known_b) if each.replicas is not None]
    values = [each.value for each in (*known_a, *known_b)]
    linear = min(values) <= 0 or any(each.min() <= 0 for each in replicas)
    mean_a, mean_b = _mean(known_a), _mean(known_b)
    change = mean_b - mean_a if linear else math.log(mean_b / mean_a)
    if paired and _pairs(known_a[0], known_b[0]):
        noise = _scaled(known_b[0], linear) - _scaled(known_a[0], linear)  # [replicates]
        variance = float(noise.var()) * known_a[0].factor
        return _Change(change=change, variance=variance, freedom=known_a[0].freedom, linear=linear)
    noise_a, noise_b = _noise(known_a, linear), _noise(known_b, linear)
    if noise_a is None or noise_b is None:
        return None
    variance = noise_a[0] + noise_b[0]
    return _Change(
        change=change, variance=variance, freedom=_welch_freedom(noise_a, noise_b), linear=linear
    )


def _pairs(a: ReplicatedFigure, b: ReplicatedFigure) -> bool:
    """Whether the replicas of both were drawn alike."""
    both = a.replicas is not None and b.replicas is not None
    return both and (a.factor, a.freedom) == (b.factor, b.freedom)


def _scaled(figure: ReplicatedFigure, linear: bool) -> np.ndarray:
    assert figure.replicas is not None
    return figure.replicas if linear else np.log(figure.replicas)


def _noise(figures: Sequence[ReplicatedFigure], linear: bool) -> tuple[float, float] | None:
    """The variance of a side's mean and its degrees of freedom; None if unknown."""
    runs = len(figures)
    values = np.array([figure.value for figure in figures])
    if runs >= RUNS_THAT_VARY:
        variance = float(values.var(ddof=1)) / runs
        scale = 1.0 if linear else float(values.mean()) ** 2
        return variance / scale, runs - 1.0
    if any(figure.replicas is None for figure in figures):
        return None
    variances = [float(_scaled(each, linear).var()) * each.factor for each in figures]
    return sum(variances) / runs**2, sum(figure.freedom for figure in figures)


def _welch_freedom(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of two variances (Welch and Satterthwaite)."""
    bottom = a[0] ** 2 / a[1] + b[0] ** 2 / b[1]
    return (a[0] + b[0]) ** 2 / bottom if bottom > 0 else a[1] + b[1]


def _difference(
    key: Key, a: Sequence[RunFigures], b: Sequence[RunFigures], change: _Change | None
) -> Difference:
    """Join two figures with their estimated difference; the verdict is added later."""
    traffic_class, figure, statistic = key
    known_a = [run.figures[key] for run in a if key in run.figures]
    known_b = [run.figures[key] for run in b if key in run.figures]
    mean_a = _mean(known_a) if known_a else None
    mean_b = _mean(known_b) if known_b else None
    made = Difference(
        figure=figure, statistic=statistic, traffic_class=traffic_class, a=mean_a, b=mean_b
    )
    if mean_a is not None and mean_b is not None and mean_a > 0:
        made = replace(made, relative=mean_b / mean_a - 1)
    if change is None or mean_a is None:
        return made
    error = math.sqrt(change.variance)
    half = error * float(stdtrit(change.freedom, 1 - TAIL))
    made = replace(made, p_value=_p_value(change.change, error, change.freedom))
    if mean_a <= 0:
        return made
    low, high = change.change - half, change.change + half
    if change.linear:  # and still no figure is less than nothing
        return replace(made, low=max(-1.0, low / mean_a), high=high / mean_a)
    return replace(made, low=math.expm1(low), high=math.expm1(high))


def _p_value(change: float, error: float, freedom: float) -> float:
    if error <= 0:  # no noise at all: the least difference is one
        return 1.0 if math.isclose(change, 0, abs_tol=1e-12) else 0.0
    return float(2 * stdtr(freedom, -abs(change) / error))


def judged(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Add verdicts, holding the false discovery rate over all of them.

    As `scipy.stats.false_discovery_control`, which takes a second to import.
    """
    p_values = sorted(each.p_value for each in differences if each.p_value is not None)
    allowed = [
        p_value
        for rank, p_value in enumerate(p_values, start=1)
        if p_value <= FALSE_DISCOVERIES * rank / len(p_values)
    ]
    bound = max(allowed, default=-1.0)
    return tuple(replace(each, verdict=_verdict(each, bound)) for each in differences)


def _verdict(difference: Difference, bound: float) -> Verdict:
    if difference.p_value is None or difference.a is None or difference.b is None:
        return "unknown"
    if difference.p_value > bound:
        return "within noise"
    better = _BETTER.get(difference.figure, "neither")
    if better == "neither":
        return "different"
    return "better" if (difference.b < difference.a) == (better == "lower") else "worse"


def _mean(figures: Sequence[ReplicatedFigure]) -> float:
    return sum(figure.value for figure in figures) / len(figures)


def _words(runs: Sequence[RunFigures]) -> Side:
    first = runs[0].record.header
    return Side(
        label=first.label or first.started_at,
        runs=len(runs),
        command=first.command,
        completed=sum(run.measures.total.completed for run in runs),
        failed=sum(run.measures.total.failed for run in runs),
    )


def _method(runs_a: int, runs_b: int, *, paired: bool) -> str:
    if min(runs_a, runs_b) >= RUNS_THAT_VARY:
        noise = f"how far the {runs_a} and {runs_b} runs of a side lie apart (Welch's test)"
    elif paired:
        noise = "a moving block bootstrap of two runs of the same requests, pairwise"
    elif max(runs_a, runs_b) >= RUNS_THAT_VARY:
        noise = "how far runs lie apart on the one side, a moving block bootstrap on the other"
    else:
        noise = "a moving block bootstrap within the runs"
    return (
        f"noise is {noise}; false discovery rate held at 5 % over all figures; intervals are 95 %"
    )
