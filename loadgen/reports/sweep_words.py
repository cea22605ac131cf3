"""What a sweep found, in words."""

from collections.abc import Iterator
from typing import Final

from loadgen.records.sweep_record import BestLoad, Knee, SweepRecord
from loadgen.reports.document import Facts
from loadgen.reports.figure_text import number

LOAD_WORDS: Final = {"rate": "sessions/s", "concurrency": "in flight"}


def load_words(sweep: SweepRecord, load: float) -> str:
    """`8 sessions/s`, `16 in flight`."""
    return f"{number(load)} {LOAD_WORDS[sweep.axis]}"


def knee_words(sweep: SweepRecord, knee: Knee) -> str:
    """Where it is, and how sure that is."""
    edge = "; it is the last or first load tried: the knee may lie beyond" if knee.at_edge else ""
    between = ""
    if knee.low < knee.high:
        between = f" (not told apart from {number(knee.low)} .. {number(knee.high)})"
    return (
        f"{load_words(sweep, knee.load)}{between}: {number(knee.requests_per_s)} requests/s at "
        f"{number(knee.e2e_mean_ms)} ms mean E2E{edge}"
    )


def best_words(sweep: SweepRecord, best: BestLoad) -> str:
    """The highest load that keeps the SLO, with what is known above it."""
    sure = f"with {100 * best.confidence:g} % confidence"
    if best.load is None:
        return f"no load that was tried keeps {best.slo} {sure}; {best.words}"
    above = "none above was tried that does not"
    if best.above is not None:
        above = f"{number(best.above)} does not"
    return f"{load_words(sweep, best.load)} keeps {best.slo} {sure}, {above}; {best.words}"


def findings(sweep: SweepRecord) -> Facts:
    """The knee, the highest load that keeps the SLO, the most throughput, and how it ended."""
    return Facts(title="findings", rows=tuple(_findings(sweep)))


def _findings(sweep: SweepRecord) -> Iterator[tuple[str, str]]:
    if sweep.knee is not None:
        yield "knee", knee_words(sweep, sweep.knee)
    if sweep.best is not None:
        yield "highest load", best_words(sweep, sweep.best)
    most = sweep.highest_requests_per_s
    if most is not None:
        between = (
            ""
            if most.low is None or most.high is None
            else f" ({number(most.low)} .. {number(most.high)})"
        )
        yield "throughput", f"at most {number(most.value)}{between} requests/s were completed"
    yield "ended", ("interrupted: " if sweep.interrupted else "") + sweep.stopped


def sweep_facts(sweep: SweepRecord) -> Facts:
    """What was sent, and in which time its figures are."""
    return Facts(title="sweep", rows=tuple(_facts(sweep)))


def _facts(sweep: SweepRecord) -> Iterator[tuple[str, str]]:
    yield "workload", sweep.workload
    yield (
        "points",
        f"{len(sweep.points)}, {sum(point.requests for point in sweep.points):,} requests",
    )
    yield "rates", f"per {sweep.time} s; latencies in {sweep.time} ms"
