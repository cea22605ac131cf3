"""What a run comes to, in a line: how it ended, its SLO, failures, and the client's own part."""

from collections.abc import Iterator

from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.records.plain_number import counted
from loadgen.records.run_record import RunRecord
from loadgen.reports.figure_text import percentile_name


def run_verdict(record: RunRecord, measures: RunMeasures) -> str:
    """`SLO missed: TTFT p99; 3 of 400 requests failed; load generator not saturated`."""
    return "; ".join((*_ending(record), *_parts(measures)))


def _ending(record: RunRecord) -> Iterator[str]:
    """Nothing of a run that ended as it was to."""
    if record.end is None:
        yield "killed before its end"
    elif record.end.problem:
        yield "ended before its time"
    elif record.end.interrupted:
        yield "interrupted"


def _parts(measures: RunMeasures) -> Iterator[str]:
    several = len(measures.classes) > 1
    for each in measures.classes.values():
        if each.slo is not None:
            yield _slo(each, f" of {each.name}" if several else "")
    total = measures.total
    if total.failed:
        yield f"{total.failed:,} of {counted(total.requests, 'request')} failed"
    else:
        yield "no request failed" if total.requests else "no request was measured"
    if measures.saturated:
        yield f"{held_back(measures)}: figures tell of the client, too"
    elif measures.cpu_share is not None or measures.loop_lag_p99_ms is not None:
        yield held_back(measures)


def held_back(measures: RunMeasures) -> str:
    """How the load generator is saturated, if it is: by its own work, or by whatever delays it."""
    if measures.busy:
        return "load generator saturated (no CPU left)"
    if measures.late:
        return "load generator late (its event loop, with CPU to spare)"
    return "load generator not saturated"


def _slo(found: ClassMeasures, whose: str) -> str:
    assert found.slo is not None
    missed = [
        f"{bound.measure.removesuffix('_ms').upper()} {percentile_name(bound.percentile)}"
        for bound in found.slo.bounds
        if not bound.kept
    ]
    return f"SLO{whose} missed: {', '.join(missed)}" if missed else f"SLO{whose} kept"
