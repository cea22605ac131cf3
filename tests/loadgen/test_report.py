import json
from dataclasses import replace

from rich.console import Console

from loadgen.attack import AttackSummary
from loadgen.measure import measure
from loadgen.report import Report, WorkloadSummary, to_json
from loadgen.report_table import print_report
from loadgen.result import Result
from loadgen.server_clock import ServerReading, ServerWindow
from loadgen.workload import LengthCuts

MS = 1_000_000
NO_CUTS = LengthCuts(
    max_input_tokens=None,
    max_output_tokens=None,
    input_cut_requests=0,
    input_tokens_cut=0,
    output_cut_requests=0,
    output_tokens_cut=0,
)
INFO = {"system": "trn3", "time_model": "big", "weights": "small", "routing": "uniform"}
EMULATED = ServerWindow(
    start=ServerReading(
        dilation=2.0,
        emulated_s=0,
        lag_s=0,
        chip_joules=0,
        facility_joules=0,
        chips=4,
        provisioned_watts=2000,
        info={**INFO, "clock": "dilated:2"},
    ),
    end=ServerReading(dilation=2.0, emulated_s=0.1, lag_s=0, chip_joules=60, facility_joules=100),
)
FOREIGN = ServerWindow(
    start=ServerReading(problem="status 404"), end=ServerReading(problem="status 404")
)


def result(dilation: float, *, error: str | None = None, chunks: int = 4) -> Result:
    return Result(
        request_id=0,
        intended_ns=0,
        sent_ns=0,
        chunk_ns=tuple((at + 1) * 50 * MS for at in range(chunks)),
        asked_input_tokens=10,
        asked_output_tokens=4,
        input_tokens=10,
        output_tokens=chunks,
        error=error,
        message="",
        dilation=dilation,
    )


def report(server: ServerWindow, *results: Result) -> Report:
    return Report(
        command="ultraserve-loadgen run --requests 1",
        measures=measure(results, server),
        server=server,
        workload=WorkloadSummary(
            url="http://host:1",
            model="m",
            trace="trace.csv",
            arrivals="closed loop, 1 in flight",
            prompts="token ids",
            seed=0,
            requests=1,
            repeated_heads=0,
            warmup_requests=1,
            warmup_problem="",
        ),
        cuts=NO_CUTS,
        attack=AttackSummary(held_back=0, unsent=0, interrupted=False),
        example_errors={"status 503": "no room [bold]"},
    )


def printed(made: Report) -> str:
    console = Console(width=110, force_terminal=False)
    with console.capture() as captured:
        print_report(made, console)
    return captured.get()


def test_the_json_has_every_figure_in_emulated_time() -> None:
    fields = json.loads(to_json(report(EMULATED, result(2.0))))

    # 4 tokens in 200 wall ms, 0.1 emulated s: 40/s; 100 J in 0.1 s: 1,000 W
    expected = {
        "requests": 1,
        "failed_requests": 0,
        "input_tokens": 10,
        "output_tokens": 4,
        "output_tokens_per_s": 40.0,
        "tokens_per_s_per_chip": 10.0,
        "ttft_ms": {"p50": 25.0, "p90": 25.0, "p99": 25.0},
        "tpot_ms": {"p50": 25.0, "p90": 25.0, "p99": 25.0},
        "itl_ms": {"p50": 25.0, "p90": 25.0, "p99": 25.0},
        "e2e_ms": {"p50": 100.0, "p90": 100.0, "p99": 100.0},
        "average_watts": 1000.0,
        "joules_per_output_token": 25.0,
        "output_tokens_per_s_per_mw": {"facility": 40_000.0, "provisioned": 20_000.0},
        "time": "emulated",
        "dilation": 2.0,
        "wall_s": 0.2,
        "emulated_s": 0.1,
        "lag_s": 0,
        "time_model": "big",
        "weights": "small",
        "errors": {},
        "notes": [],
    }
    assert {key: fields[key] for key in expected} == expected
    assert fields["command"] == "ultraserve-loadgen run --requests 1"
    assert fields["workload"]["arrivals"] == "closed loop, 1 in flight"
    assert fields["cuts"]["max_input_tokens"] is None


def test_what_a_foreign_server_does_not_say_is_null_in_json_and_said_in_words() -> None:
    foreign = report(FOREIGN, result(1.0))
    fields = json.loads(to_json(foreign))

    for key in ("average_watts", "joules_per_output_token", "emulated_s", "weights", "lag_s"):
        assert fields[key] is None
    assert fields["output_tokens_per_s_per_mw"] == {"facility": None, "provisioned": None}
    assert (fields["time"], fields["dilation"]) == ("wall", 1.0)
    assert fields["ttft_ms"]["p50"] == 50.0
    assert "not reported by the server" in printed(foreign)
    assert any("no /metrics to read (status 404)" in note for note in foreign.notes())


def test_a_run_in_which_all_failed_is_still_json_without_nan() -> None:
    for results in ((), (result(2.0, error="status 503", chunks=0),)):
        text = to_json(report(EMULATED, *results))

        assert "NaN" not in text
        assert json.loads(text)["ttft_ms"] == {"p50": None, "p90": None, "p99": None}


def test_the_printed_report_says_which_time_which_models_and_which_clock() -> None:
    text = printed(report(EMULATED, result(2.0)))

    for phrase in (
        "time model  big",
        "weights     small",
        "routing     uniform",
        "dilated:2: 1 emulated second is 2 wall seconds",
        "0.000 emulated s (0.00 % of the window)",
        "latency, emulated ms",
        "input as in the trace; output as in the trace",
        "1,000.0 W at the facility",
        "40,000.0 at the facility",
        "20,000.0 of the 2,000 W provisioned",
        "repeat: ultraserve-loadgen run --requests 1",
    ):
        assert phrase in text
    assert "note:" not in text


def test_errors_are_printed_by_kind_with_the_server_s_words_as_they_are() -> None:
    failed = result(2.0, error="status 503", chunks=0)
    text = printed(report(EMULATED, result(2.0), failed, failed))

    assert "1 completed, 2 failed" in text
    assert "2 x status 503: no room [bold]" in text


def test_cuts_are_printed_with_what_they_took() -> None:
    cuts = replace(NO_CUTS, max_output_tokens=64, output_cut_requests=3, output_tokens_cut=1234)
    text = printed(replace(report(EMULATED, result(2.0)), cuts=cuts))

    assert "output cut to 64 in 3 requests (1,234 tokens less)" in text


def test_whatever_makes_a_figure_doubtful_is_noted() -> None:
    sound = report(EMULATED, result(2.0))
    cases = (
        (replace(sound, attack=AttackSummary(held_back=7, unsent=0, interrupted=False)), "7 requ"),
        (replace(sound, attack=AttackSummary(held_back=0, unsent=5, interrupted=True)), "5 not"),
        (replace(sound, workload=replace(sound.workload, repeated_heads=3)), "3 prompts begin"),
        (replace(sound, workload=replace(sound.workload, warmup_problem="gone")), "failed: gone"),
        (replace(sound, measures=replace(sound.measures, uncounted_replies=2)), "2 replies came"),
        (replace(sound, measures=replace(sound.measures, short_replies=2)), "ignore_eos"),
        (replace(sound, measures=replace(sound.measures, resized_prompts=2)), "2 prompts have"),
        (replace(sound, measures=replace(sound.measures, chunks=3)), "4 tokens came in 3 chunks"),
        (replace(sound, measures=replace(sound.measures, lag_s=0.5)), "late by 0.500 emulated s"),
        (replace(sound, measures=replace(sound.measures, metered_s=0.2)), "metered over 0.200 s"),
        (
            replace(sound, server=replace(EMULATED, end=ServerReading(dilation=3.0))),
            "went from 2 to 3",
        ),
        (
            replace(sound, server=replace(EMULATED, end=ServerReading(problem="no answer"))),
            "at the end: no answer",
        ),
    )

    assert sound.notes() == ()
    for doubtful, words in cases:
        assert [words in note for note in doubtful.notes()] == [True]
