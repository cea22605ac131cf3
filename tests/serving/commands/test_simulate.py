"""`ultraserve simulate` from its arguments to its text and JSON."""

import json
import signal
import threading
from pathlib import Path

import pytest

from emulator.specs.partition import Partition
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.traffic import Traffic
from serving.main import main
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate

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


def test_json_is_the_run_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, *RATE, "--seed", "3", "--json"))
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=2, ep=2, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=256),
    )
    lengths = IndependentLengths(prompt=parse_lengths("300"), output=parse_lengths("uniform:1-20"))
    run = simulate(deployment, Traffic.drawn(rate_per_s=40, lengths=lengths, seed=3, requests=30))

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


def test_words_say_what_keeps_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *RATE, "--slo", "ttft=1s,tpot=100ms@p99")

    assert "30 of 30 completed" in text
    assert "100.00% keep it" in text
    assert "modelled, not measured" in text


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


def test_an_interrupt_leaves_a_report_of_what_was_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threading.Timer(1.5, signal.raise_signal, [signal.SIGINT]).start()
    many = (*SMALL, "--rate", "40", "--requests", "200000", "--input", "300", "--output", "20")
    before = signal.getsignal(signal.SIGINT)

    assert main([*many, "--json"]) == 130
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert 0 < data["completed_requests"] < data["requests"] == 200_000
    assert data["ttft_ms"]["p99"] > 0
    assert "interrupted" in said.err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "0"], "rate_per_s=0.0: expected a finite number above 0"),
        (["--rate", "1", "--input", "x"], "--input=x: expected"),
        (["--rate", "1", "--requests", "0"], "requests=0: expected at least 1"),
        (["--rate", "1", "--tp", "3"], "tp"),
        (["--rate", "1", "--model", "gpt-5"], "model=gpt-5: expected one of"),
        (["--rate", "1", "--slo", "ttft"], "slo=ttft: expected"),
        (["--rate", "1", "--input", "99999"], "max_model_len=40960: expected at least"),
        (["--rate", "1", "--prefill-policy", "x"], "prefill_policy=x: expected"),
        (["--trace", "no/such", "--input", "5"], "input=5: expected nothing beside --trace"),
        (["--trace", "no/such", "--burstiness", "2"], "burstiness=2.0: expected nothing beside"),
        (["--trace", "no/such"], "no/such"),
        (["--rate", "1", "--speedup", "2"], "speedup=2.0: expected nothing beside --rate"),
        (["--rate", "1e-12"], "arrival_s="),
        (["--rate", "1", "--replicas", "0"], "replicas=0: expected at least 1"),
        (["--rate", "1", "--router", "best"], "router=best: expected one of round-robin"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *more]) == 2

    refused = capsys.readouterr()
    assert refused.out == ""
    assert says in refused.err
    assert refused.err.count("\n") == 1
