"""What a sweep found, in words."""

import re
from collections.abc import Iterator
from typing import Final

from loadgen.records.sweep_record import BestLoad, Knee, SweepRecord
from loadgen.reports.document import Facts
from loadgen.reports.figure_text import number

_NUMBERS: Final = re.compile(r"\d[\d.,]*(?<![.,])")
LOAD_WORDS: Final = {"rate": "sessions/s", "concurrency": "in flight"}


def load_and_unit(sweep: SweepRecord, load: float) -> str:
    """`8 sessions/s`, `16 in flight`."""
    return f"{number(load)} {LOAD_WORDS[sweep.axis]}"


def knee_words(sweep: SweepRecord, knee: Knee) -> str:
    """Where it is, and how sure that is."""
    edge = "; it is the last or first load tried: the knee may lie beyond" if knee.at_edge else ""
    between = ""
    if knee.low < knee.high:
        between = f" (not told apart from {number(knee.low)} .. {number(knee.high)})"
    return (
        f"{load_and_unit(sweep, knee.load)}{between}: {number(knee.requests_per_s)} requests/s at "
        f"{number(knee.e2e_mean_ms)} ms mean E2E{edge}"
    )


def best_words(sweep: SweepRecord, best: BestLoad) -> str:
    """The highest load that keeps the SLO, with the lowest load above it that misses."""
    sure = f"with {100 * best.confidence:g} % confidence"
    kept = "no load that was tried" if best.load is None else load_and_unit(sweep, best.load)
    ends = f"; {best.words}" if best.words else ""
    return f"{kept} keeps {best.slo} {sure}{ends}"


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


def point_notes(sweep: SweepRecord) -> Iterator[str]:
    """The warnings of all points, each once: `sessions/s 1, 2, 8: ...`.

    Those that differ in nothing but their numbers are one, given with those of the highest load.
    """
    found: dict[str, dict[float, str]] = {}
    for point in sorted(sweep.points, key=lambda each: each.load):
        for warning in point.warnings:
            found.setdefault(_NUMBERS.sub("#", warning), {})[point.load] = warning
    for warnings in found.values():
        loads, last = ", ".join(map(number, warnings)), list(warnings.values())[-1]
        numbers = f" (at {number(max(warnings))})" if len(set(warnings.values())) > 1 else ""
        yield f"{LOAD_WORDS[sweep.axis]} {loads}: {last}{numbers}"
