"""A run in words: server, traffic, requests, load generator, and the verdict."""

from collections.abc import Iterator
from typing import Final

from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.records.plain_number import counted
from loadgen.records.run_record import ClassHeader, RunRecord
from reporting.document import UNKNOWN, Facts
from reporting.numbers import number, percent, percentile_name

SERVER_LABELS: Final = ("system", "time_model", "weights", "routing")
"""Labels of an emulated server's info, beside its clock."""


def server_facts(record: RunRecord, measures: RunMeasures) -> Facts:
    """The server, its emulated system, and its clock; or what was simulated."""
    if record.header.simulated:
        return Facts(title="simulated", rows=tuple(_simulated(record, measures)))
    return Facts(title="server", rows=tuple(_server(record, measures)))


def _simulated(record: RunRecord, measures: RunMeasures) -> Iterator[tuple[str, str]]:
    yield "model", record.header.model
    for label, value in record.header.start.info.items():
        yield label.replace("_", " "), value
    if measures.window_s is not None:
        yield "window", f"{measures.window_s:,.3f} {measures.time} s"
    if record.end is not None:
        yield "simulated in", f"{number(record.end.wall_s)} wall s"


def _server(record: RunRecord, measures: RunMeasures) -> Iterator[tuple[str, str]]:
    start = record.header.start
    yield "server", f"{record.header.url}, model {record.header.model}"
    if any(label in start.info for label in SERVER_LABELS):
        for label in SERVER_LABELS:
            yield label.replace("_", " "), start.info.get(label, UNKNOWN)
    if start.chips is not None:
        yield "chips", number(start.chips)
    if measures.time == "emulated":
        clock = start.info.get("clock", "clock")
        yield "clock", f"{clock}: 1 emulated second is {dilation_words(record, measures)}"
        if measures.lag_s is None:
            yield "lag", UNKNOWN
        else:
            window_s = measures.window_s
            share = f" ({percent(measures.lag_s / window_s)} of the window)" if window_s else ""
            yield "lag", f"{measures.lag_s:.3f} emulated s{share}"
    else:
        yield "clock", f"wall time; a clock of its own is {UNKNOWN}"
    if measures.window_s is not None and measures.wall_s is not None:
        wall = f" ({measures.wall_s:,.2f} wall s)" if measures.time == "emulated" else ""
        yield "window", f"{measures.window_s:,.3f} {measures.time} s{wall}"
    if record.header.skip_s:
        yield "", f"the first {record.header.skip_s:g} {measures.time} s are not measured"


def dilation_words(record: RunRecord, measures: RunMeasures) -> str:
    """Wall seconds per emulated second, and the number of the clock's epochs."""
    found = [each.dilation for each in record.epochs]
    if len(found) < 2:
        return f"{measures.dilation:g} wall seconds"
    return f"{min(found):g} to {max(found):g} wall seconds, in {len(found)} epochs"


def class_facts(header: ClassHeader, *, several: bool) -> Facts:
    """A class's workload and arrivals."""
    sent = "" if header.api is None else f", by {header.api}"
    rows = [("workload", header.workload), ("", f"{_limit(header)}{sent}")]
    if header.prompts:
        rows.append(("prompts", header.prompts))
    rows.append(("arrivals", header.arrivals.words))
    if header.slo:
        rows.append(("SLO", header.slo))
    rows.extend(("note", note) for note in header.notes)
    return Facts(title=f"traffic class {header.name}" if several else "traffic", rows=tuple(rows))


def _limit(header: ClassHeader) -> str:
    """The end of the class: its plan, its time, or both."""
    within = ""
    if header.ends_s is not None:
        within = f"as many sessions as begin within {header.ends_s:g} {header.arrivals.time} s"
    if header.requests is None or header.sessions is None:
        return within or "requests as they come"
    requests = counted(header.requests, "request")
    planned = f"{requests} in {counted(header.sessions, 'session')}"
    return f"{within}, at most {planned}" if within else planned


def request_facts(record: RunRecord, measures: RunMeasures) -> Facts:
    """Counts of requests and tokens, and of errors by kind."""
    several = len(measures.classes) > 1
    rows: list[tuple[str, str]] = []
    for each in (*(measures.classes.values() if several else ()), measures.total):
        rows.append((each.name if several else "requests", _ended(each)))
    total = measures.total
    cached = "" if total.cached_tokens is None else f" ({total.cached_tokens:,} from the cache)"
    rows.append(("tokens", f"{total.input_tokens:,} in{cached}, {total.output_tokens:,} out"))
    for kind, count in sorted(total.errors.items(), key=lambda each: -each[1]):
        words = total.example_errors.get(kind, "")
        rows.append(("errors", f"{count:,} x {kind}" + (f": {words}" if words else "")))
    if record.end is None:
        rows.append(("end", "none: the run's file stops before it"))
    return Facts(title="requests", rows=tuple(rows))


def _ended(measures: ClassMeasures) -> str:
    parts = [f"{measures.completed:,} completed", f"{measures.failed:,} failed"]
    if measures.aborted:
        parts.append(f"{measures.aborted:,} aborted")
    return ", ".join(parts)


def client_facts(record: RunRecord, measures: RunMeasures) -> Facts:
    """The load generator's own load; its lag is part of every figure above."""
    if record.header.simulated:
        words = f"none: every request arrives when it is due; seed {record.header.seed}"
        return Facts(title="load generator", rows=(("simulated", words),))
    workers = record.header.workers
    rows = [("workers", f"{workers}, seed {record.header.seed}")]
    if measures.loop_lag_p99_ms is not None:
        rows.append(
            (
                "event loop",
                f"late by {number(measures.loop_lag_p99_ms)} wall ms at the 99th centile",
            )
        )
    if measures.cpu_share is not None:
        rows.append(("CPU", f"{percent(measures.cpu_share)} of a core, the busiest worker"))
    tells = ": figures tell of the client, too" if measures.saturated else ""
    rows.append(("verdict", f"{held_back(measures)}{tells}"))
    return Facts(title="load generator", rows=tuple(rows))


def run_verdict(record: RunRecord, measures: RunMeasures) -> str:
    """`SLO missed: TTFT p99; 3 of 400 requests failed; load generator not saturated`."""
    return "; ".join((*_ending(record), *_parts(measures)))


def _ending(record: RunRecord) -> Iterator[str]:
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
    """The load generator's saturation: by its own work, or a late event loop."""
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
