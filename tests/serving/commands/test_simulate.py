"""`ultraserve simulate` from its arguments to its text and JSON."""

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from emulator.specs.partition import Partition
from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.workloads.class_draft import draft_class
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.planned_traffic import class_traffic
from loadgen.workloads.workload_spec import WorkloadSpec
from serving.main import main
from serving.simulator import SimulatedDeployment, simulate

SMALL = ("simulate", "--model", "qwen3-30b-a3b", "--chips", "2")
RATE = (*SMALL, "--rate", "40", "--requests", "30", "--input", "300", "--output", "uniform:1-20")
KEYS = {
    *("requests", "completed_requests", "output_tokens", "steps", "emulated_s", "wall_s"),
    *("compile_s", "preemptions", "ttft_ms", "tpot_ms", "e2e_ms", "joules"),
    "output_tokens_per_s_per_mw",
}


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.long
def test_json_is_the_run_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, *RATE, "--seed", "3", "--json"))
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=2, ep=2, lnc=2)
    )
    spec = WorkloadSpec(
        input_lengths=parse_lengths("300"),
        output_lengths=parse_lengths("uniform:1-20"),
        sessions=30,
    )
    made = class_traffic(draft_class(spec, ArrivalSpec(rate="40"), seed=3))
    run = simulate(deployment, made.traffic)

    assert data.keys() >= KEYS
    assert (data["requests"], data["completed_requests"]) == (30, 30)
    assert data["output_tokens"] == run.served.tokens
    assert data["steps"] == run.served.steps
    assert data["joules"] == pytest.approx(run.served.joules)
    ttft_s = run.ttft_percentile_s(99)
    assert ttft_s is not None
    assert data["ttft_ms"]["p99"] == pytest.approx(ttft_s * 1e3)
    assert data["e2e_ms"]["p50"] > data["ttft_ms"]["p50"]
    assert data["output_tokens_per_s_per_mw"] == pytest.approx(
        data["output_tokens_per_s"] / data["facility_watts"] * 1e6
    )


def test_the_same_arguments_give_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [json.loads(said(capsys, *RATE, "--json")) for _ in range(2)]
    for run in runs:
        del run["wall_s"], run["compile_s"]
    assert runs[0] == runs[1]


def test_a_machine_with_other_figures_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RATE, "--set", "hbm_bandwidth=2x"]) == 0
    assert "trn3-nl72x2 with hbm_bytes_per_s=2x" in capsys.readouterr().err


def test_words_say_what_keeps_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *RATE, "--slo", "ttft=1s,tpot=100ms@p99")

    assert "30 of 30 completed" in text
    assert "100.00% keep it" in text
    assert "modelled, not measured" in text


@pytest.mark.long
def test_prompts_of_a_trace_share_their_beginnings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 200 * n, "input_length": 1_100, "output_length": 4, "hash_ids": [1, 2, 3 + n]}
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cached, anew = (
        json.loads(said(capsys, *SMALL, "--trace", str(path), "--json", *more))
        for more in ((), ("--no-prefix-caching",))
    )

    assert anew["hit_tokens"] == 0
    # Two ranks: at most the first request of each computes the 1,024 tokens that all share.
    assert cached["hit_tokens"] in (4 * 1_024, 5 * 1_024)
    assert cached["ttft_ms"]["p50"] < anew["ttft_ms"]["p50"]


def test_each_class_is_held_to_its_own_target(capsys: pytest.CaptureFixture[str]) -> None:
    classes = (
        *("--traffic-class", "chat rate=20 requests=10 slo=ttft=10s"),
        *("--traffic-class", "batch concurrency=2 requests=6 output=40 slo=tpot=1us"),
    )
    words = (*SMALL, "--input", "100", "--output", "8", *classes)
    chat, batch = json.loads(said(capsys, *words, "--json"))["classes"]

    assert (chat["name"], chat["requests"], chat["completed_requests"]) == ("chat", 10, 10)
    assert (chat["slo"], chat["kept"]) == ("ttft=10s", [1, 1, 1])
    assert (batch["name"], batch["requests"], batch["kept"]) == ("batch", 6, [1, 0, 0])
    text = said(capsys, *words)
    assert "10 of 10 completed; 100.00% keep ttft=10s" in text
    assert "6 of 6 completed; 0.00% keep tpot=1us" in text


@pytest.mark.long
def test_an_interrupt_leaves_a_report_of_what_was_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is before:  # it compiles
            time.sleep(0.02)
        time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    many = (*SMALL, "--rate", "40", "--requests", "1000000", "--input", "300", "--output", "20")

    assert main([*many, "--json"]) == 130
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert 0 < data["completed_requests"] < data["requests"] == 1_000_000
    assert data["ttft_ms"]["p99"] > 0
    assert "interrupted" in said.err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "0"], "--rate=0: expected a number above 0"),
        ([], "--rate=None: expected a rate, a --concurrency or a --trace"),
        (["--rate", "1", "--input", "x"], "--input=x: expected"),
        (["--rate", "1", "--tp", "3"], "tp"),
        (["--rate", "1", "--model", "gpt-5"], "model=gpt-5: expected one of"),
        (["--rate", "1", "--slo", "ttft"], "slo=ttft: expected"),
        (["--rate", "1", "--input", "99999"], "max_model_len=40960: expected at least"),
        (["--rate", "1", "--prefill-policy", "x"], "prefill_policy=x: expected"),
        (
            ["--rate", "1", "--long-prefill-token-threshold", "-1"],
            "long_prefill_token_threshold=-1: expected at least 0",
        ),
        (["--trace", "no/such", "--burstiness", "2"], "--burstiness=2.0: expected it beside"),
        (["--trace", "no/such"], "no/such"),
        (["--rate", "1", "--speedup", "2"], "--speedup=2: expected recorded arrivals, without"),
        (["--rate", "1e-12"], "--rate=600 sessions in"),
        (
            ["--concurrency", "9", "--duration", "9s", "--input", "9", "--output", "1"],
            "--duration=9: expected --requests beside it: 1,000 begin in",
        ),
        (["--rate", "1", "--schema", "{schema}"], "--schema=given: expected no schema: how long"),
        (["--rate", "1", "--wall-time"], "--wall-time=given: expected emulated times alone"),
        (["--rate", "1", "--max-in-flight", "3"], "--max-in-flight=given: expected a --concurr"),
        (["--traffic-class", "a rate=1 api=chat"], "--traffic-class a: --api=chat is no option"),
        (["--traffic-class", "a rate=1"] * 2, "--traffic-class=['a', 'a']: expected names that"),
        (["--classes", "no/such"], "no/such: No such file"),
        (["--rate", "1", "--replicas", "0"], "replicas=0: expected at least 1"),
        (["--rate", "1", "--router", "best"], "router=best: expected one of round-robin"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text("{}")
    assert main([*SMALL, *(each.format(schema=schema) for each in more)]) == 2

    refused = capsys.readouterr()
    assert refused.out == ""
    assert says in refused.err
    assert refused.err.count("\n") == 1


def test_a_time_ends_a_closed_loop_beside_another_class(capsys: pytest.CaptureFixture[str]) -> None:
    classes = ("--traffic-class", "a rate=3 requests=5", "--traffic-class", "b concurrency=3")
    assert main([*SMALL, *classes, "--duration", "4s", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["classes"]] == ["a", "b"]
    assert [each["completed_requests"] for each in found["classes"]] == [5, 3]
    assert (found["requests"], found["unsent_requests"]) == (8, 0)
