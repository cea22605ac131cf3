"""The rules of the Trace Event Format's JSON objects that matter to readers.

Chromium's "Trace Event Format" names each phase's fields; Perfetto cuts times below a ns and drops
a span that overlaps another of its thread without lying within it.
"""

import math
from collections import defaultdict
from typing import Any

_REQUIRED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), "pid": int, "tid": int},
    "C": {"name": str, "ts": (int, float), "pid": int, "args": dict},
    "i": {"name": str, "ts": (int, float), "pid": int, "tid": int, "s": str},
    "M": {"name": str, "pid": int, "args": dict},
}
_METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
_OPTIONAL = {"ph", "args", "cat", "tid", "id"}


def faults_of(trace: Any) -> list[str]:
    """All violations of a trace."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["a trace is an object with a list of traceEvents"]
    faults = []
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        faults.append(f"displayTimeUnit is ms or ns, not {trace.get('displayTimeUnit')}")
    if set(trace) - {"traceEvents", "displayTimeUnit", "otherData"}:
        faults.append(f"unknown fields {sorted(trace)}")
    for event in trace["traceEvents"]:
        faults += _event_faults(event)
    if not faults:
        faults += _overlaps(trace["traceEvents"]) + _nameless(trace["traceEvents"])
    return faults


def whole_ns(microseconds: float) -> int:
    """A time as Perfetto reads it, cut to ns."""
    return int(microseconds * 1_000.0)


def _event_faults(event: Any) -> list[str]:
    required = _REQUIRED.get(event.get("ph") if isinstance(event, dict) else None)
    if required is None:
        return [f"no phase that is written here: {event}"]
    faults = [
        f"{name} is missing or no {kind}: {event}"
        for name, kind in required.items()
        if not isinstance(event.get(name), kind) or isinstance(event.get(name), bool)
    ]
    unknown = set(event) - set(required) - _OPTIONAL
    faults += [f"unknown {name}: {event}" for name in unknown]
    for name in ("ts", "dur"):
        value = event.get(name, 0)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            faults.append(f"{name} is a time from 0 on: {event}")
    if event["ph"] == "C" and not faults:
        values = event["args"].values()
        if not values or not all(type(value) in (int, float) for value in values):
            faults.append(f"a counter has numbers: {event}")
    if event["ph"] == "i" and event.get("s") not in ("g", "p", "t"):
        faults.append(f"a moment's scope is g, p or t: {event}")
    if event["ph"] == "M" and not faults:
        field, kind = _METADATA.get(event["name"], ("", str))
        if not isinstance(event["args"].get(field), kind):
            faults.append(f"no metadata that a reader knows: {event}")
    return faults


def _overlaps(events: list[dict[str, Any]]) -> list[str]:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = whole_ns(event["ts"])
            threads[event["pid"], event["tid"]].append((begin, begin + whole_ns(event["dur"])))
    faults = []
    for thread, spans in threads.items():
        open_ends: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                faults.append(f"spans of thread {thread} overlap at {begin} ns")
            open_ends.append(end)
    return faults


def _nameless(events: list[dict[str, Any]]) -> list[str]:
    named = {(e["name"], e["pid"], e.get("tid", 0)) for e in events if e["ph"] == "M"}
    processes = {pid for name, pid, _ in named if name == "process_name"}
    threads = {(pid, tid) for name, pid, tid in named if name == "thread_name"}
    faults = [
        f"process {pid} has no name"
        for pid in sorted({event["pid"] for event in events} - processes)
    ]
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] in ("X", "i")}
    return faults + [f"thread {thread} has no name" for thread in sorted(used - threads)]
