"""`ultraserve plan` from its arguments to its text and JSON."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from emulator.errors import ConfigError, UltraServeError
from loadgen.errors import LoadError
from serving.analysis.plan.night import DEEPSEEK_SOURCE
from serving.analysis.plan.plan_demand import TraceDemand
from serving.commands import plan as command

SMALL = (
    *(
        "--model",
        "qwen3-30b-a3b",
        "--slo",
        "ttft=300ms,tpot=20ms@p90",
        "--chips",
        "1",
        "--lnc",
        "2",
    ),
    *("--requests", "30", "--processes", "1", "--tries", "1", "--prefill-policy", "none"),
)
RATE = (*SMALL, "--rate", "60", "--input", "400", "--output", "12")


PRICES = Path("deploy/prices/example.toml")


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["plan", *arguments])
    args.words = ["plan", *arguments]
    return args


def trace(path: Path, seconds: int, rate_per_s: int = 2) -> Path:
    rows = [
        json.dumps({"timestamp": at * 1000 // rate_per_s, "input_length": 300, "output_length": 8})
        for at in range(seconds * rate_per_s)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.long
def test_a_rate_is_planned_for_in_words_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed(*RATE, "--price-hour", "500", "--price-kwh", "0.1", "--json")
    assert args.run(args) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)

    assert data["checks"]["plan"]["meets"] is True
    assert data["question"]["peak_requests_per_s"] == 60
    assert data["power"]["peak_cost"]["machine_dollars_per_hour"] == pytest.approx(500)
    assert data["night"]["source"] == DEEPSEEK_SOURCE
    assert "keep the target" in captured.err


@pytest.mark.slow
def test_changed_figures_are_planned_beside_the_catalogs_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "figures.svg"
    changes = ("--set", "bf16_flops=2x", "--set", "hbm_bandwidth=2x", "--assumption", "dma=spec")
    args = parsed(*RATE, *changes, "--budget", "50s", "--plot", str(picture), "--json")
    assert args.run(args) == 0
    data = json.loads(capsys.readouterr().out)

    change = data["change"]
    assert change["set"] == [
        *("hbm_bytes_per_s=2x", "dma_bytes_per_s=2x", "tensor_bf16_flops_per_s=2x"),
    ]
    assert change["budget_s_of_each"] == 25
    assert change["before"]["chips_in_service"] >= change["after"]["chips_in_service"]
    assert data["question"]["assumptions"] == ["dma=spec", *change["set"]]
    assert data["sensitivity"]["figures"][0]["moved"][0]["set"] in ("0.5x", "-10%")
    assert "hbm_bandwidth" in picture.read_text()


def test_a_picture_that_cannot_be_written_is_refused_before_the_search() -> None:
    args = parsed(*RATE, "--plot", "figures.jpg")

    with pytest.raises(ConfigError, match=r"plot=figures.jpg: expected a path that ends in"):
        args.run(args)


@pytest.mark.slow
def test_the_fit_is_the_default_and_says_what_it_was_fitted_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = (*RATE, "--requests", "20")
    assert command.question_of(parsed(*small)).sweep.assumptions.calibration.name == "fitted"
    ceiling = command.question_of(parsed(*small, "--calibration", "roofline"))
    assert ceiling.sweep.assumptions.calibration.name == "roofline"

    args = parsed(*small)
    args.run(args)
    text = capsys.readouterr().out
    assert "calibration fitted" in text
    assert "GPU servers, none like trainium3: assumed to hold there" in text
    assert "cost:  not priced" in text


def test_a_trace_is_multiplied_and_its_peak_is_planned_for(tmp_path: Path) -> None:
    path = trace(tmp_path / "even.jsonl", 100)
    plain = command.question_of(parsed(*SMALL, "--trace", str(path), "--peak-window", "20"))
    more = command.question_of(
        parsed(
            *SMALL, "--trace", str(path), "--peak-window", "20", "--scale", "3", "--speedup", "2"
        )
    )

    assert isinstance(plain.demand, TraceDemand)
    assert plain.demand.peak_rate_per_s == pytest.approx(2.0)
    assert more.demand.peak_rate_per_s == pytest.approx(12.0, rel=0.1)
    assert "even.jsonl, 2 times as fast, 3 times the requests" in more.demand.in_words()
    assert plain.day.source == DEEPSEEK_SOURCE


@pytest.mark.slow
def test_a_trace_s_prefixes_are_planned_with_unless_they_are_not_to_be_cached(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "shared.jsonl"
    rows = [
        {"timestamp": 50 * n, "input_length": 1_024, "output_length": 4, "hash_ids": [0, 1 + n]}
        for n in range(400)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = (*SMALL, "--no-pools", "--trace", str(path), "--peak-window", "10")
    found = []
    for more in ((), ("--no-prefix-caching",)):
        data, page = tmp_path / "plan.json", tmp_path / "plan.html"
        args = parsed(*asked, *more, "--json", str(data), "--html", str(page))
        assert args.run(args) == 0
        found.append((capsys.readouterr().out, page.read_text(), json.loads(data.read_text())))
    (text, page_text, cached), (anew_text, anew_page, anew) = found

    assert cached["checks"]["plan"]["run"]["hit_share"] == pytest.approx(0.5, abs=0.01)
    assert cached["question"]["prefixes"]["cached_share_max"] == pytest.approx(0.5, abs=0.01)
    assert cached["plan"]["chips_in_service"] < anew["plan"]["chips_in_service"]
    for each in (text, page_text):
        assert " % of prompt tokens found in prefix caches" in each
    assert "a random 1/n of the conversations" in text
    assert " prompt tokens/s (10," in text
    assert anew["checks"]["plan"]["run"]["hit_share"] is None
    assert "no prefix is cached (--no-prefix-caching)" in anew_text
    assert "found in prefix caches" not in anew_text + anew_page


def test_the_day_is_the_trace_s_own_where_it_is_a_day_long(tmp_path: Path) -> None:
    rows = [
        json.dumps({"timestamp": hour * 3_600_000 + at, "input_length": 300, "output_length": 8})
        for hour in range(26)
        for at in range(0, 3_600_000, 900_000 if hour % 24 < 6 else 300_000)
    ]
    path = tmp_path / "day.jsonl"
    path.write_text("\n".join(rows) + "\n")
    asked = command.question_of(parsed(*SMALL, "--trace", str(path), "--peak-window", "900"))

    assert "the trace" in asked.day.source
    assert asked.day.mean_shares[0] == pytest.approx(1 / 3)
    assert asked.day.mean_shares[12] == pytest.approx(1.0)


def test_lengths_come_from_a_file(tmp_path: Path) -> None:
    path = trace(tmp_path / "lengths.jsonl", 10)
    asked = command.question_of(parsed(*SMALL, "--rate", "5", "--lengths", str(path)))

    assert set(asked.demand.peak.prompt_tokens.tolist()) == {300}
    assert asked.sweep.shape.prompt_tokens == 300


def test_mean_lengths_are_means() -> None:
    lengths = ("--rate", "5", "--input", "lognormal:1000,1300", "--output", "lognormal:100,130")
    peak = command.question_of(parsed(*SMALL, *lengths)).demand.peak

    assert float(peak.prompt_tokens.mean()) == pytest.approx(1_000, rel=0.05)
    assert float(peak.output_tokens.mean()) == pytest.approx(100, rel=0.05)


def test_a_chip_that_has_not_the_stored_format_takes_the_narrowest_that_it_has() -> None:
    arguments = ("--model", "gpt-oss-20b", "--slo", "tpot=1s", "--rate", "1")
    on_trn3 = command.question_of(parsed(*arguments))
    on_trn2 = command.question_of(parsed(*arguments, "--system", "trn2-ultraserver"))

    assert on_trn3.sweep.precisions == ("stored",)
    assert on_trn2.sweep.precisions == ("fp8",)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--rate", "5", "--slo", "ttft=fast"), "slo"),
        (("--rate", "0"), "rate"),
        (("--rate", "-1"), "rate"),
        (("--rate", "5", "--model", "gpt-9"), "model"),
        (("--rate", "5", "--system", "abacus"), "system"),
        (("--rate", "5", "--assumption", "moon=blue"), "assumption"),
        (("--rate", "5", "--input", "0"), "input"),
        (("--rate", "5", "--output", "2000000"), "output"),
        (("--rate", "5", "--scale", "2"), "scale"),
        (("--rate", "5", "--peak-window", "60"), "peak-window"),
        (("--rate", "5", "--precision", "int3"), "precision"),
        (("--rate", "5", "--routing", "odd"), "routing"),
        (("--rate", "5", "--calibration", "guess"), "calibration"),
        (("--rate", "5", "--requests", "0"), "requests"),
        (("--rate", "5", "--tries", "0"), "tries"),
        (("--rate", "5", "--prefill-policy", "none,hasty"), "prefill"),
        (("--rate", "5", "--seed", "-1"), "seed"),
        (("--rate", "5", "--price-hour", "-1"), "system_hour_dollars"),
        (("--rate", "5", "--price-hour", "1", "--price-chip-hour", "1"), "system_hour_dollars"),
        (("--rate", "5", "--max-num-seqs", "0"), "max-num-seqs=0: expected at least 1"),
        (("--rate", "5", "--max-num-seqs", "64,few"), "max-num-seqs"),
        (("--rate", "5", "--max-num-seqs", "9000"), "max-num-batched-tokens=8192"),
        (("--rate", "5", "--minimise", "usd"), "minimise=usd: expected prices: --price-hour"),
        (("--rate", "5", "--minimise", "gco2"), "minimise=gco2: expected the grid's carbon"),
        (("--rate", "5", "--gco2-per-kwh", "-1"), "gco2-per-kwh"),
        (("--rate", "5", "--prices", str(PRICES), "--gco2-per-kwh", "1"), "gco2-per-kwh"),
        (("--rate", "5", "--day", "none.csv"), "day"),
        (("--rate", "5", "--lengths", "none.csv"), "none.csv"),
        (("--trace", "none.csv"), "none.csv"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(arguments: tuple[str, ...], field: str) -> None:
    with pytest.raises((UltraServeError, LoadError), match=field) as refusal:
        command.question_of(parsed(*SMALL, *arguments))

    assert "\n" not in str(refusal.value)


def test_batch_limits_are_one_several_or_those_that_a_plan_tries() -> None:
    def limits(*given: str) -> list[tuple[int, int]]:
        asked = command.question_of(parsed(*SMALL, "--rate", "5", *given))
        first = asked.check.schedulers.batch
        assert asked.sweep.shape.batched_tokens_max == first.max_num_batched_tokens
        both = (first, *asked.search.other_limits)
        return [(each.max_num_seqs, each.max_num_batched_tokens) for each in both]

    assert limits() == [(1_024, 8_192), (1_024, 2_048), (256, 8_192), (256, 2_048)]
    assert limits("--max-num-seqs", "64") == [(64, 8_192), (64, 2_048)]
    assert limits("--max-num-seqs", "64", "--max-num-batched-tokens", "512") == [(64, 512)]
    # A step of fewer tokens than requests is left out.
    mixed = ("--max-num-seqs", "64,1024", "--max-num-batched-tokens", "512,2048")
    assert limits(*mixed) == [(64, 512), (64, 2_048), (1_024, 2_048)]


def test_what_machines_cost_is_not_minimised_for_several_models() -> None:
    mixed = ("--model", "gpt-oss-20b=1,gpt-oss-120b=1", "--slo", "tpot=1s", "--rate", "1")
    args = parsed(*mixed, "--minimise", "mw")

    with pytest.raises(ConfigError, match="minimise=mw: expected chips with several models"):
        args.run(args)


def test_carbon_comes_from_an_option_or_from_the_file_of_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        """
[energy]
grid_gco2_per_kwh = { value = 300, source = "assumed" }
[systems.trn3-nl72x2.on_demand]
hour_dollars = 500
source = "assumed"
"""
    )
    small = (*SMALL, "--rate", "5", "--minimise")
    given = command.question_of(parsed(*small, "gco2", "--gco2-per-kwh", "400"))
    read = command.question_of(parsed(*small, "usd", "--prices", str(path)))

    assert (given.minimise, given.grid_gco2_per_kwh) == ("gco2", 400)
    assert (read.minimise, read.grid_gco2_per_kwh) == ("usd", 300)
    assert command.question_of(parsed(*SMALL, "--rate", "5")).minimise == "chips"


def test_processes_below_one_are_refused() -> None:
    args = parsed(*RATE, "--processes", "0")

    with pytest.raises(ConfigError, match="processes"):
        args.run(args)


def test_an_argument_of_a_trace_beside_lengths_is_refused(tmp_path: Path) -> None:
    path = trace(tmp_path / "lengths.jsonl", 3)

    with pytest.raises(ConfigError, match="input"):
        command.question_of(parsed(*SMALL, "--rate", "5", "--lengths", str(path), "--input", "9"))


def is_there(group: int) -> bool:
    """Whether a process group has any process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "serving.main", "plan", *RATE, *arguments, "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.process
def test_an_interrupt_ends_it_and_its_workers_in_one_line() -> None:
    process = started("--requests", "500000")
    while len(psutil.Process(process.pid).children()) < 2:  # a worker, and what tracks it
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, rest = process.communicate(timeout=60)

    assert process.returncode == 130
    assert out == ""
    assert rest.splitlines() == ["ultraserve plan: interrupted, nothing was planned"]
    deadline = time.monotonic() + 10.0
    while is_there(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_there(process.pid)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_search_with_the_best_so_far(number: int, code: int) -> None:
    policies = ",".join(["none", *(f"capped:{tokens}" for tokens in range(64, 960))])  # minutes
    process = started(
        "--prefill-policy", policies, "--tries", "9", "--requests", "100", "--budget", "1h"
    )
    assert process.stderr is not None
    while "keep the target" not in process.stderr.readline():
        assert process.poll() is None
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)

    assert process.returncode == code
    assert "plan:  1 UltraServer" in out
    assert "the search was cut short" in out


@pytest.mark.long
def test_a_budget_ends_the_search_with_the_best_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed(*RATE, "--budget", "1ms")

    with pytest.raises(ConfigError, match="budget"):
        args.run(args)
    assert "keep the target" not in capsys.readouterr().err
