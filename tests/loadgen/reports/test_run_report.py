import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from loadgen.measures.measurement import measure_run
from loadgen.records.result import Result
from loadgen.records.run_record import RunRecord
from loadgen.records.server_reading import ServerReading
from loadgen.reports.requests_csv import request_lines
from loadgen.reports.run_report import RunReport
from reporting.data_forms import to_json
from reporting.document import ReportDocument
from reporting.html import to_html
from reporting.markdown import to_markdown
from reporting.numbers import number
from reporting.terminal import print_report
from tests.loadgen.reports.made_runs import (
    EMULATED,
    FOREIGN,
    MS,
    class_header,
    made_run,
    simulated_run,
)

METERED = replace(EMULATED, emulated_s=0.1, chip_joules=60.0, facility_joules=100.0)


def result(*, error: str | None = None, message: str = "") -> Result:
    """Four tokens, 50 wall ms apart."""
    chunk_ns = np.arange(1, 5, dtype=np.int64) * 50 * MS
    return Result(
        request_id=0,
        traffic_class="chat",
        session_id=0,
        turn=0,
        worker=0,
        intended_ns=0,
        sent_ns=0,
        ended_ns=200 * MS,
        chunk_ns=chunk_ns[:0] if error else chunk_ns,
        asked_input_tokens=10,
        asked_output_tokens=4,
        input_tokens=10,
        output_tokens=4,
        error=error,
        message=message,
    )


def record(
    *results: Result, start: ServerReading = EMULATED, end: ServerReading = METERED
) -> RunRecord:
    made = made_run(requests=1)
    assert made.end is not None
    return replace(
        made,
        header=replace(made.header, start=start),
        results=list(results),
        end=replace(made.end, end=end, wall_s=0.2),
    )


def report(made: RunRecord) -> RunReport:
    return RunReport(record=made, measures=measure_run(made))


def printed(made: ReportDocument, *, width: int = 110) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        print_report(made, console)
    return captured.get()


def words(text: str) -> str:
    """What is printed, whatever room is left between it."""
    return " ".join(text.split())


def test_the_json_has_every_figure_in_emulated_time() -> None:
    fields = json.loads(to_json(report(record(result()))))

    # 4 tokens in 200 wall ms, 0.1 emulated s: 40/s; 100 J in 0.1 s: 1,000 W.
    expected = {
        "requests": 1,
        "completed_requests": 1,
        "failed_requests": 0,
        "input_tokens": 10,
        "output_tokens": 4,
        "output_tokens_per_s": 40.0,
        "tokens_per_s_per_chip": 10.0,
        "average_watts": 1000.0,
        "chip_average_watts": 600.0,
        "joules_per_output_token": 25.0,
        "output_tokens_per_s_per_mw": {"facility": 40_000.0, "provisioned": 20_000.0},
        "time": "emulated",
        "dilation": 2.0,
        "wall_s": 0.2,
        "window_s": 0.1,
        "emulated_s": 0.1,
        "time_model": "qwen3-30b-a3b",
        "clock": "dilated:2",
        "errors": {},
        "interrupted": False,
    }
    assert {key: fields[key] for key in expected} == expected
    for name, value in (("ttft_ms", 25.0), ("tpot_ms", 25.0), ("itl_ms", 25.0), ("e2e_ms", 100.0)):
        assert {key: fields[name][key] for key in ("p50", "p90", "p99")} == pytest.approx(
            {"p50": value, "p90": value, "p99": value}
        )
    assert fields["command"].startswith("ultraserve-loadgen run ")
    assert fields["classes"]["chat"]["asked_arrivals"]["rate_per_s"] == 20.0
    assert fields["classes"]["chat"]["output_tokens"] == 4
    assert fields["client"]["cpu_share"] == 0.34


def test_the_json_has_the_intervals_of_what_has_them() -> None:
    fields = json.loads(to_json(report(made_run())))

    low, high = fields["ttft_ms"]["intervals"]["p50"]
    assert low < fields["ttft_ms"]["p50"] < high
    low, high = fields["intervals"]["output_tokens_per_s"]
    assert low < fields["output_tokens_per_s"] < high


def test_what_a_foreign_server_does_not_say_is_null_in_json_and_said_in_words() -> None:
    foreign = report(record(result(), start=FOREIGN, end=FOREIGN))
    fields = json.loads(to_json(foreign))

    for key in ("average_watts", "joules_per_output_token", "emulated_s", "weights", "lag_s"):
        assert fields[key] is None
    assert fields["output_tokens_per_s_per_mw"] == {"facility": None, "provisioned": None}
    assert (fields["time"], fields["dilation"]) == ("wall", 1.0)
    assert fields["ttft_ms"]["p50"] == 50.0
    text = words(printed(foreign))
    assert "tokens/s per MW and per chip are not reported by the server" in text
    assert "latency, wall ms" in text
    assert "emulated" not in text.replace("per emulated s", "")  # what was asked keeps its words


@pytest.mark.parametrize("results", [(), (result(error="status 503"),)])
def test_a_run_in_which_nothing_completed_is_still_told_in_full(results: tuple[Result]) -> None:
    made = report(record(*results))
    text = to_json(made)

    assert "NaN" not in text
    ttft = json.loads(text)["ttft_ms"]
    assert (ttft["samples"], ttft["p50"], ttft["p99"]) == (0, None, None)
    assert f"0 completed, {len(results)} failed" in words(printed(made))
    for section in made.document().sections:
        assert section.rows, section.title
    assert "interactivity" not in printed(made)


def test_latency_is_given_from_when_due_and_from_the_send() -> None:
    late = replace(
        result(), intended_ns=0, sent_ns=30 * MS, chunk_ns=np.array([50 * MS], dtype=np.int64)
    )
    lines = printed(report(record(late, late))).splitlines()

    def p50(label: str) -> str:
        (line,) = [line for line in lines if line.startswith(f" {label}  ")]
        return line.removeprefix(f" {label}").split()[1]

    assert (p50("TTFT"), p50("TTFT, from send")) == ("25", "10")
    assert p50("queueing at the client") == "15"


def test_a_simulated_run_has_no_figure_of_a_client_a_server_or_a_wall_clock() -> None:
    made = report(simulated_run())
    fields = json.loads(to_json(made))

    assert fields["simulated"]
    for key in ("client", "url", "wall_s", "lag_s"):
        assert fields[key] is None
    for name in ("queueing_ms", "ttft_from_send_ms", "e2e_from_send_ms"):
        assert fields[name]["samples"] == 0
        assert fields[name]["p99"] is None
    assert fields["ttft_ms"]["samples"] == 400
    assert fields["average_watts"] == pytest.approx(1_000.0)
    text = words(printed(made))
    for absent in ("from send", "queueing", "workers", "event loop", "not reported", "saturated"):
        assert absent not in text
    assert "modelled, not measured" in text
    assert "none: every request arrives when it is due; seed 0" in text
    assert "from the cost model average power, facility" in text
    (row, *_) = csv.DictReader(io.StringIO("".join(request_lines(made.record))))
    assert (row["queueing_ms"], row["ttft_from_send_ms"]) == ("", "")
    assert float(row["ttft_ms"]) > 0


def test_a_file_that_does_not_say_what_was_asked_shows_a_dash_there() -> None:
    made = made_run()
    old = replace(
        made.header.classes[0],
        arrivals=replace(made.header.classes[0].arrivals, asked_rate_per_s=None, asked_gap_cv=None),
    )
    text = words(printed(report(replace(made, header=replace(made.header, classes=(old,))))))

    assert "rate, 1/s - 20 " in text
    assert "gap CV - 1.010 " in text


@pytest.mark.long
def test_the_plan_is_told_only_where_it_is_what_ends_the_class() -> None:
    made = made_run()
    closed = replace(class_header(concurrency=16), ends_s=60.0, sessions=None, requests=None)
    timed = words(printed(report(replace(made, header=replace(made.header, classes=(closed,))))))

    assert "as many sessions as begin within 60 emulated s, by completions" in timed
    assert "400 requests in 400 sessions" not in timed
    assert "400 requests in 400 sessions, by completions" in printed(report(made))
    both = replace(class_header(concurrency=16), ends_s=60.0)
    assert "within 60 emulated s, at most 400 requests in 400 sessions" in words(
        printed(report(replace(made, header=replace(made.header, classes=(both,)))))
    )


@pytest.mark.long
def test_a_line_under_the_title_says_what_the_run_comes_to() -> None:
    made = made_run(slo="ttft=50ms@p90,tpot=500ms@p90")
    lines = printed(report(made)).splitlines()
    failed = sum(each.error is not None for each in made.results)

    assert lines[2].startswith(f"SLO missed: TTFT p90; {failed} of 400 requests failed; load ")
    kept = made_run(slo="ttft=500s", failing=0.0)
    assert printed(report(kept)).splitlines()[2].startswith("SLO kept; no request failed; load ")
    assert f"**SLO missed: TTFT p90; {failed} of" in to_markdown(report(made))
    assert f"<strong>SLO missed: TTFT p90; {failed} of" in to_html(report(made))


def test_a_run_that_did_not_end_as_it_was_to_says_so_first() -> None:
    made = made_run()
    assert made.end is not None
    sending = {name: replace(each, interrupted=True) for name, each in made.end.sending.items()}
    ends = {
        "killed before its end; ": None,
        "ended before its time; ": replace(made.end, problem="worker 1 died"),
        "interrupted; ": replace(made.end, sending=sending),
    }

    for said, end in ends.items():
        verdict = report(replace(made, end=end)).document().verdict
        assert verdict.startswith(said)
    assert not report(made).document().verdict.startswith(tuple(ends))


@pytest.mark.parametrize(
    ("busy", "late", "said"),
    [
        (True, True, "load generator saturated (no CPU left): figures tell"),
        (False, True, "load generator late (its event loop, with CPU to spare): figures tell"),
        (False, False, "load generator not saturated"),
    ],
)
def test_a_load_generator_that_is_busy_is_told_from_one_that_is_late(
    busy: bool, late: bool, said: str
) -> None:
    made = report(made_run())
    made = replace(made, measures=replace(made.measures, busy=busy, late=late))
    client = json.loads(to_json(made))["client"]

    assert words(printed(made)).count(said) == 2  # under the title, and where it is explained
    assert (client["busy"], client["late"], client["saturated"]) == (busy, late, busy or late)


def test_intervals_open_above_are_told_and_p90_has_its_own() -> None:
    made = made_run(requests=30)
    text = printed(report(made), width=220)
    p99 = report(made).measures.total.distributions["ttft_ms"].percentiles[99.0]

    assert p99.low is not None
    assert p99.high is None
    assert f">= {number(p99.low)}" in text
    (head,) = [line for line in text.splitlines() if "p50" in line and "p90" in line]
    assert head.count("95 % interval") == 3
    assert json.loads(to_json(report(made)))["ttft_ms"]["intervals"]["p99"] == [p99.low, None]


def test_words_from_elsewhere_give_a_terminal_no_orders() -> None:
    failed = result(error="status 503", message="a\x1b[2Jb\x07\x9bc\rd")
    text = printed(report(record(result(), failed)))

    assert not set("\x1b\x07\x9b\r") & set(text)
    assert "a\ufffd[2Jb\ufffd\ufffdc\ufffdd" in text


def test_a_closed_loop_is_named_as_what_was_asked() -> None:
    made = record(result())
    closed = class_header(concurrency=16)
    text = words(printed(report(replace(made, header=replace(made.header, classes=(closed,))))))

    assert "16 at once" in text
    assert "closed loop, 16 at once" in text


@pytest.mark.long
@pytest.mark.parametrize("width", [60, 80, 110, 160])
def test_the_tables_fit_the_terminal_and_keep_the_percentiles(width: int) -> None:
    text = printed(report(made_run(names=("chat", "batch"), slo="ttft=300ms@p99")), width=width)
    tables = [line for line in text.splitlines() if not line.startswith("repeat:")]

    assert max(len(line) for line in tables) <= width
    (head,) = {line for line in tables if "p50" in line and "p90" in line}
    assert "p99" in head
    assert ("95 % interval" in head) is (width >= 110)


@pytest.mark.long
def test_each_class_has_its_own_figures_and_its_own_slo() -> None:
    made = made_run(names=("chat", "batch"), slo="ttft=300ms,tpot=20ms@p99", failing=0.0)
    text = words(printed(report(made)))

    for name in ("chat", "batch", "all"):
        assert f"latency of {name}, emulated ms" in text
    assert "SLO of chat: ttft=300ms,tpot=20ms@p99" in text
    assert "TTFT p99 300 ms" in text
    assert "kept" in text


def test_a_run_that_was_killed_is_reported_as_far_as_it_went() -> None:
    made = report(replace(made_run(), end=None))

    assert "none: the run's file stops before it" in printed(made)
    assert json.loads(to_json(made))["interrupted"] is None
    assert json.loads(to_json(made))["requests"] == 400
