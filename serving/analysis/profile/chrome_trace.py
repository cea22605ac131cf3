"""A profiled run as Chrome trace JSON, for ui.perfetto.dev ("Open trace file").

Processes are the machine and its chips, threads their engines. Times are emulated microseconds.
Format: "Trace Event Format", Chromium project; phases X (span), C (counter), i (instant) and M
(names).

An engine's busy time is a sum over the step, drawn as one span from the step's begin: moments in a
step are not modelled. A step's parts are sums over layers, drawn in a row.
"""

import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from emulator.errors import UltraServeError
from emulator.units import GIB, NS_PER_S
from serving.analysis.profile.profiled_run import KV, ProfiledChip, ProfiledRun
from serving.wire.step_record import StepRecord

MACHINE: Final = 0
"""The machine's process; chip c is process c + 1."""

_STEPS, _PARTS, _PHASES, _HELD_UP, _MOMENTS = range(1, 6)
_MACHINE_THREADS: Final = {
    _PHASES: "phases",
    _STEPS: "steps",
    _PARTS: "parts of the slowest chips (sums over layers)",
    _HELD_UP: "held up (recovering, moving experts)",
    _MOMENTS: "faults and repairs",
}

_NOTES: Final = {
    "time": "emulated microseconds since the engine's start",
    "engines": "one span per engine and step, from the step's begin, as long as the engine is busy "
    "in it: a sum over the step, not the moments at which it was busy",
    "parts": "a step's duration by part, each a sum over the layers, one after the other",
    "hbm": "who holds a chip's HBM as the run ended; KV by the blocks in use at each step",
    "watts": "averages over a step",
}

_GZIP_LEVEL: Final = 4


class _Span(msgspec.Struct, frozen=True, tag_field="ph", tag="X"):
    name: str
    cat: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: dict[str, Any]


class _CounterTrack(msgspec.Struct, frozen=True, tag_field="ph", tag="C"):
    name: str
    ts: float
    pid: int
    args: dict[str, float]


class _Instant(msgspec.Struct, frozen=True, tag_field="ph", tag="i"):
    name: str
    cat: str
    ts: float
    pid: int
    tid: int
    s: str
    args: dict[str, Any]


class _Name(msgspec.Struct, frozen=True, tag_field="ph", tag="M"):
    name: str
    pid: int
    tid: int
    args: dict[str, Any]


Event = _Span | _CounterTrack | _Instant | _Name


class TraceNotWritten(UltraServeError):
    """The file cannot be written; none of it is left."""


def write_trace(run: ProfiledRun, path: Path) -> int:
    """Write the trace, gzipped for a name in `.gz`, and return its bytes.

    Atomic. Raises TraceNotWritten.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                # No name and time: the same run makes the same bytes.
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed:
                    write_events(run, packed)
            else:
                write_events(run, raw)
        size = part.stat().st_size
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TraceNotWritten(f"{path}: {error.strerror or error}") from error
    return size


def write_events(run: ProfiledRun, file: IO[bytes] | gzip.GzipFile) -> None:
    """Write the trace's JSON."""
    encoder = msgspec.json.Encoder()
    other = {**_about(run), **_NOTES}
    file.write(b'{"displayTimeUnit":"ms","otherData":' + encoder.encode(other))
    file.write(b',"traceEvents":[\n')
    first = True
    for events in _event_groups(run):
        if events:
            file.write((b"" if first else b",\n") + encoder.encode(events)[1:-1])
            first = False
    file.write(b"\n]}\n")


def _about(run: ProfiledRun) -> dict[str, Any]:
    return {
        "source": f"{run.source} run of UltraServe",
        "system": run.system,
        "model": run.model,
        "weights": run.weights,
        "routing": run.routing,
        "steps": len(run.steps),
        "steps_dropped": run.dropped,
    }


def _event_groups(run: ProfiledRun) -> Iterator[list[Event]]:
    """Events in groups that fit in memory."""
    yield _names(run)
    counters = _Counters(run)
    yield _phase_spans(run)
    yield [
        _Instant(
            name=moment.name,
            cat="fault",
            ts=microseconds(moment.at_ns),
            pid=MACHINE,
            tid=_MOMENTS,
            s="g",
            args={"detail": moment.detail},
        )
        for moment in run.moments
    ]
    for step, after in zip(run.steps, (*run.steps[1:], None), strict=True):
        yield [*_machine_spans(step), *_engine_spans(step), *counters.during(step)]
        if after is None or after.begin_ns - after.pause_ns > step.end_ns:
            yield counters.idle(step.end_ns)


def _names(run: ProfiledRun) -> list[Event]:
    events: list[Event] = [*_process(MACHINE, f"{run.system}: {run.model}", run.routing)]
    events += [
        _Name("thread_name", MACHINE, tid, {"name": n}) for tid, n in _MACHINE_THREADS.items()
    ]
    engines = [busy.engine for busy in run.steps[0].engines] if run.steps else []
    for chip in run.chips:
        place = f"rack {chip.rack} tray {chip.tray} at {chip.position}"
        rank = "no rank" if chip.rank is None else f"rank {chip.rank}"
        events += _process(chip.chip + 1, f"chip {chip.chip}", f"{place}, {rank}")
        for tid, engine in enumerate(engines, start=1):
            events.append(_Name("thread_name", chip.chip + 1, tid, {"name": engine}))
            events.append(_Name("thread_sort_index", chip.chip + 1, tid, {"sort_index": tid}))
    return events


def _process(pid: int, name: str, labels: str) -> list[Event]:
    return [
        _Name("process_name", pid, 0, {"name": name}),
        _Name("process_labels", pid, 0, {"labels": labels}),
        _Name("process_sort_index", pid, 0, {"sort_index": pid}),
    ]


def _phase_spans(run: ProfiledRun) -> list[Event]:
    """A span for each gapless run of steps of one phase."""
    events: list[Event] = []
    runs: list[list[StepRecord]] = []
    for step in run.steps:
        last = runs[-1][-1] if runs else None
        if last is not None and last.phase is step.phase and last.end_ns == step.begin_ns:
            runs[-1].append(step)
        else:
            runs.append([step])
    for steps in runs:
        begin_ns, end_ns = steps[0].begin_ns, steps[-1].end_ns
        args = {"steps": len(steps), "tokens": sum(step.tokens for step in steps)}
        events.append(_span(steps[0].phase, "phase", begin_ns, end_ns, MACHINE, _PHASES, args))
    return events


def _machine_spans(step: StepRecord) -> Iterator[Event]:
    prompt, decode = sum(step.prefill_tokens), sum(step.decode_tokens)
    args: dict[str, Any] = {
        "step": step.step,
        "prefill_tokens": prompt,
        "decode_tokens": decode,
        "watts": round(sum(step.watts), 1),
    }
    yield _span(step.phase, "step", step.begin_ns, step.end_ns, MACHINE, _STEPS, args)
    if step.pause_ns:
        began_ns = step.begin_ns - step.pause_ns
        yield _span("held up", "pause", began_ns, step.begin_ns, MACHINE, _HELD_UP, {})
    for name, begin_ns, end_ns in part_spans(step):
        share = {"share_of_step": round((end_ns - begin_ns) / step.duration_ns, 4)}
        yield _span(name, "part", begin_ns, end_ns, MACHINE, _PARTS, share)


def part_spans(step: StepRecord) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of each part of at least 1 ns; together the whole step.

    The running sum is rounded, so that rounding errors do not add up.
    """
    total_ns = sum(step.parts_ns.values())
    begin_ns, sum_ns = step.begin_ns, 0.0
    for name, part_ns in step.parts_ns.items():
        sum_ns += part_ns
        end_ns = step.begin_ns + min(round(sum_ns), step.duration_ns)
        if sum_ns >= total_ns:
            end_ns = step.begin_ns + min(math.ceil(sum_ns), step.duration_ns)
        if end_ns > begin_ns:
            yield name, begin_ns, end_ns
            begin_ns = end_ns


def _engine_spans(step: StepRecord) -> Iterator[Event]:
    for tid, engine in enumerate(step.engines, start=1):
        for chip, busy_ns in zip(step.chips, engine.busy_ns, strict=True):
            if busy_ns and chip >= 0:
                end_ns = step.begin_ns + busy_ns
                share = {"busy": round(busy_ns / step.duration_ns, 4)}
                yield _span(engine.engine, "engine", step.begin_ns, end_ns, chip + 1, tid, share)


class _Counters:
    """Counter tracks, written when a value changes."""

    def __init__(self, run: ProfiledRun) -> None:
        self._chips = {chip.chip: chip for chip in run.chips}
        self._kv_blocks = run.kv_blocks
        self._tp = run.tp
        self._last: dict[tuple[int, str], dict[str, float]] = {}

    def during(self, step: StepRecord) -> list[Event]:
        """Values from a step's begin on."""
        ts, seconds = microseconds(step.begin_ns), step.duration_ns / NS_PER_S
        prompt, decode = sum(step.prefill_tokens), sum(step.decode_tokens)
        shown: list[tuple[int, str, dict[str, float]]] = [
            (MACHINE, "tokens/s", {"prefill": prompt / seconds, "decode": decode / seconds}),
            (MACHINE, "power of the chips", {"W": sum(step.watts)}),
        ]
        if step.requests_running:
            queues = {
                "running": float(sum(step.requests_running)),
                "waiting": float(sum(step.requests_waiting)),
            }
            shown.append((MACHINE, "requests", queues))
        for position, chip in enumerate(step.chips):
            if chip in self._chips:
                shown.append((chip + 1, "power", {"W": step.watts[position]}))
                held = self._hbm_gib(self._chips[chip], position // self._tp, step)
                shown.append((chip + 1, "HBM GiB", held))
        return list(self._changed(ts, shown))

    def idle(self, at_ns: int) -> list[Event]:
        """Values between steps: no tokens, idle power."""
        shown: list[tuple[int, str, dict[str, float]]] = [
            (chip + 1, "power", {"W": each.idle_watts}) for chip, each in self._chips.items()
        ]
        watts = sum(chip.idle_watts for chip in self._chips.values() if chip.rank is not None)
        shown.append((MACHINE, "power of the chips", {"W": watts}))
        shown.append((MACHINE, "tokens/s", {"prefill": 0.0, "decode": 0.0}))
        return list(self._changed(microseconds(at_ns), shown))

    def _changed(
        self, ts: float, shown: list[tuple[int, str, dict[str, float]]]
    ) -> Iterator[Event]:
        for pid, name, values in shown:
            rounded = {series: round(value, 3) for series, value in values.items()}
            if self._last.get((pid, name)) != rounded:
                self._last[pid, name] = rounded
                yield _CounterTrack(name, ts, pid, rounded)

    def _hbm_gib(self, chip: ProfiledChip, rank: int, step: StepRecord) -> dict[str, float]:
        """GiB by owner, KV pool used and unused, free."""
        held = {owner: float(count) for owner, count in chip.owner_bytes.items() if owner != KV}
        pool_bytes = float(chip.owner_bytes.get(KV, 0))
        used = pool_bytes
        if step.kv_blocks_used and self._kv_blocks:
            used = pool_bytes * step.kv_blocks_used[rank] / self._kv_blocks[rank]
            held["KV in use"] = used
        held["KV pool unused"] = pool_bytes - used
        held["free"] = chip.hbm_capacity_bytes - sum(chip.owner_bytes.values())
        return {owner: count / GIB for owner, count in held.items()}


def _span(
    name: str, cat: str, begin_ns: int, end_ns: int, pid: int, tid: int, args: dict[str, Any]
) -> Event:
    ts, dur = microseconds(begin_ns), microseconds(end_ns - begin_ns)
    return _Span(name, cat, ts, dur, pid, tid, args)


def microseconds(whole_ns: int) -> float:
    """`whole_ns` in the format's unit, rounded up.

    Readers truncate to ns, and a span a ns early would overlap another.
    """
    us = whole_ns / 1_000
    return us if us * 1_000 >= whole_ns else math.nextafter(us, math.inf)
