"""Progress lines of a sweep."""

from loadgen.durations import duration_words
from loadgen.records.sweep_record import SweepPoint
from loadgen.sweeps.bound_shares import samples_needed
from loadgen.sweeps.load_grid import load_words
from loadgen.sweeps.options import SweepOptions


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


def notes(options: SweepOptions) -> tuple[str, ...]:
    """The lines before the first run."""
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
