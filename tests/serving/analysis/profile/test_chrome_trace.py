"""The trace of a run: events by hand, the format's rules, and nothing lost or added."""

import gzip
import io
import json
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.profile.chrome_trace import (
    TraceNotWritten,
    microseconds,
    part_spans,
    write_events,
    write_trace,
)
from serving.analysis.profile.profiled_run import ProfiledRun
from serving.wire.step_record import EngineBusy, StepRecord
from tests.serving.analysis.profile.profiled_runs import a_chip, a_run
from tests.serving.analysis.profile.trace_event_format import faults_of, whole_ns
from tests.serving.telemetry.step_records import MS, a_step

MACHINE, CHIP_0, CHIP_1, SPARE = 0, 1, 2, 3


def written(run: ProfiledRun, path: Path) -> Any:
    write_trace(run, path)
    return json.loads(path.read_text())


def trace_events(run: ProfiledRun) -> list[dict[str, Any]]:
    file = io.BytesIO()
    write_events(run, file)
    events: list[dict[str, Any]] = json.loads(file.getvalue())["traceEvents"]
    return events


def of(run: ProfiledRun, **wanted: Any) -> list[dict[str, Any]]:
    return [
        event
        for event in trace_events(run)
        if all(event.get(name) == value for name, value in wanted.items())
    ]


def spans(run: ProfiledRun, **wanted: Any) -> list[tuple[str, float, float]]:
    """Name, begin and length in ms."""
    return [
        (event["name"], event["ts"] / 1e3, event["dur"] / 1e3)
        for event in of(run, ph="X", **wanted)
    ]


def test_an_engine_s_span_is_as_long_as_it_is_busy_from_the_step_s_begin() -> None:
    run = a_run()

    assert spans(run, pid=CHIP_0) == [
        *(("tensor", 0.0, 2.0), ("dma", 0.0, 8.0), ("collectives", 0.0, 1.0)),
        *(("tensor", 15.0, 2.0), ("dma", 15.0, 8.0), ("collectives", 15.0, 1.0)),
        *(("tensor", 30.0, 2.0), ("dma", 30.0, 8.0), ("collectives", 30.0, 1.0)),
    ]
    # Chip 1 sends nothing: an engine that has nothing to do has no span.
    assert [name for name, _, _ in spans(run, pid=CHIP_1)] == ["tensor", "dma"] * 3
    assert of(run, ph="X", pid=SPARE) == []
    (busy, *_) = of(run, ph="X", pid=CHIP_1, name="dma")
    assert busy["args"] == {"busy": 0.4}


def test_the_machine_shows_steps_parts_phases_and_pauses() -> None:
    run = a_run()

    assert spans(run, cat="step") == [
        ("decode", 0.0, 10.0),
        ("prefill", 15.0, 10.0),
        ("decode", 30.0, 10.0),
    ]
    assert spans(run, cat="part")[:3] == [
        ("attention", 0.0, 4.0),
        ("experts", 4.0, 5.0),
        ("dispatch_combine", 9.0, 1.0),
    ]
    assert spans(run, cat="pause") == [("held up", 10.0, 5.0)]
    (first, *_) = of(run, cat="step")
    assert first["args"] == {"step": 0, "prefill_tokens": 0, "decode_tokens": 12, "watts": 1100.0}
    (moment,) = of(run, ph="i")
    assert (moment["name"], moment["ts"], moment["args"]) == (
        "hang-chip chip 2",
        9000.0,
        {"detail": "a spare"},
    )


def test_steps_of_a_phase_that_follow_each_other_are_one_span() -> None:
    run = a_run(steps=tuple(a_step(number) for number in range(3)), moments=())

    assert spans(run, cat="phase") == [("decode", 0.0, 30.0)]
    (phase,) = of(run, cat="phase")
    assert phase["args"] == {"steps": 3, "tokens": 36}


def test_counters_by_hand() -> None:
    run = a_run()
    shown = [
        (event["ts"] / 1e3, event["args"]) for event in of(run, ph="C", pid=CHIP_1, name="HBM GiB")
    ]
    # 50 of 200 blocks of a pool of 40 GB; the same in every step, so it is written once.
    held = {"weights": 30.0, "KV in use": 10.0, "KV pool unused": 30.0, "free": 30.0}
    assert shown == [(0.0, {owner: round(gb * 1e9 / 2**30, 3) for owner, gb in held.items()})]
    watts = [(event["ts"] / 1e3, event["args"]) for event in of(run, ph="C", pid=CHIP_0)]
    assert [(at, args["W"]) for at, args in watts if "W" in args] == [
        *((0.0, 600.0), (25.0, 200.0), (30.0, 600.0), (40.0, 200.0))
    ]
    rates = of(run, ph="C", name="tokens/s")
    assert [(event["ts"] / 1e3, event["args"]) for event in rates] == [
        (0.0, {"prefill": 0.0, "decode": 1200.0}),
        (15.0, {"prefill": 9000.0, "decode": 1000.0}),
        (25.0, {"prefill": 0.0, "decode": 0.0}),
        (30.0, {"prefill": 0.0, "decode": 1200.0}),
        (40.0, {"prefill": 0.0, "decode": 0.0}),
    ]
    (queues,) = of(run, ph="C", name="requests")
    assert queues["args"] == {"running": 12.0, "waiting": 1.0}


def test_a_chip_s_spans_are_its_own_wherever_it_sits() -> None:
    moved = a_step(chips=(2, -1))
    run = a_run(steps=(moved,), moments=())

    assert [name for name, _, _ in spans(run, pid=SPARE)] == ["tensor", "dma", "collectives"]
    assert spans(run, pid=CHIP_0) == spans(run, pid=CHIP_1) == []


def test_the_file_says_what_it_is_and_what_it_does_not_know(tmp_path: Path) -> None:
    trace = written(a_run(dropped=7), tmp_path / "trace.json")

    assert faults_of(trace) == []
    about = trace["otherData"]
    assert (about["system"], about["steps"], about["steps_dropped"]) == ("trn3-nl72x2", 3, 7)
    assert "not the moments" in about["engines"]
    assert trace["traceEvents"] == trace_events(a_run(dropped=7))
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {"trn3-nl72x2: qwen3-30b-a3b", "chip 0", "chip 1", "chip 2"}


@given(
    st.lists(
        st.tuples(st.integers(1, 10**12), st.integers(0, 10**12), st.floats(0, 1), st.floats(0, 1)),
        min_size=1,
        max_size=12,
    )
)
def test_any_run_keeps_the_rules_and_every_ns(drawn: list[tuple[int, int, float, float]]) -> None:
    steps: list[StepRecord] = []
    now_ns = 0
    for number, (duration_ns, gap_ns, busy, cut) in enumerate(drawn):
        begin_ns = now_ns + gap_ns
        engines = tuple(
            EngineBusy(engine=name, busy_ns=(int(busy * duration_ns), duration_ns))
            for name in ("tensor", "dma")
        )
        steps.append(
            a_step(
                number,
                begin_ns=begin_ns,
                pause_ns=gap_ns // 2,
                duration_ns=duration_ns,
                engines=engines,
                parts_ns={"a": cut * duration_ns, "b": 0.0, "c": (1 - cut) * duration_ns},
            )
        )
        now_ns = begin_ns + duration_ns
    run = a_run(steps=tuple(steps), end_ns=now_ns, moments=())
    trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(run)}

    assert faults_of(trace) == []
    drawn_ns: dict[tuple[int, str], int] = defaultdict(int)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            drawn_ns[event["pid"], event["cat"]] += whole_ns(event["dur"])
    steps_ns = sum(step.duration_ns for step in steps)
    assert drawn_ns[MACHINE, "step"] == steps_ns
    assert drawn_ns[MACHINE, "part"] == steps_ns
    assert drawn_ns[MACHINE, "pause"] == sum(step.pause_ns for step in steps)
    for position in (0, 1):
        busy_ns = sum(engine.busy_ns[position] for step in steps for engine in step.engines)
        assert drawn_ns[position + 1, "engine"] == busy_ns


@given(st.integers(0, 2**53 // 1_000))
def test_a_time_is_read_back_to_the_ns(time_ns: int) -> None:
    assert whole_ns(microseconds(time_ns)) == time_ns


def test_parts_that_sum_to_less_than_the_rounded_step_still_fill_it() -> None:
    step = a_step(duration_ns=10, begin_ns=100, parts_ns={"a": 3.3, "b": 0.2, "c": 6.1})

    assert list(part_spans(step)) == [("a", 100, 103), ("b", 103, 104), ("c", 104, 110)]


def test_a_packed_trace_is_the_same_and_the_same_bytes_again(tmp_path: Path) -> None:
    plain, first, second = (tmp_path / name for name in ("t.json", "a.json.gz", "b.json.gz"))
    for path in (plain, first, second):
        assert write_trace(a_run(), path) == path.stat().st_size

    assert gzip.decompress(first.read_bytes()) == plain.read_bytes()
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.json.gz",
        "b.json.gz",
        "t.json",
    ]


def test_a_file_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceNotWritten, match=r"nowhere/t\.json: No such file or directory"):
        write_trace(a_run(), tmp_path / "nowhere" / "t.json")


def test_the_checker_sees_what_is_wrong(tmp_path: Path) -> None:
    good = written(a_run(), tmp_path / "t.json")
    span = next(event for event in good["traceEvents"] if event["ph"] == "X")
    for broken in (
        {"dur": -1.0},
        {"ts": math.inf},
        {"ph": "Z"},
        {"name": 3},
        {"dur": span["dur"] + 6_000.0},  # into the next step
        {"tid": 99},
        {"color": "red"},
    ):
        events = [event | broken if event is span else event for event in good["traceEvents"]]
        assert faults_of(good | {"traceEvents": events}) != [], broken
    assert faults_of([]) != []
    assert faults_of(good | {"displayTimeUnit": "s"}) != []


@pytest.mark.slow
def test_a_whole_machine_s_thousand_steps_are_written_in_seconds(tmp_path: Path) -> None:
    chips = 144
    wide = {
        name: getattr(a_step(), name) * (chips // 2)
        for name in ("prefill_tokens", "decode_tokens", "kv_blocks_used", "watts", "flops")
    }
    engines = tuple(
        EngineBusy(engine=engine.engine, busy_ns=engine.busy_ns * (chips // 2))
        for engine in a_step().engines * 2
    )
    steps = tuple(
        a_step(number, chips=tuple(range(chips)), engines=engines, **wide)
        for number in range(1_000)
    )
    run = a_run(
        steps=steps,
        end_ns=10_000 * MS,
        chips=tuple(a_chip(chip, chip) for chip in range(chips)),
        kv_blocks=(200,) * chips,
    )
    started_s = time.process_time()
    write_trace(run, tmp_path / "wide.json.gz")

    # About 3 s on one core of 2026; a second or two more or less is the host's.
    assert time.process_time() - started_s < 20
