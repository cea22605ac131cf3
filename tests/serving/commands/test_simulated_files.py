"""The files of `ultraserve simulate`: results that the load generator reads, and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.main import main as loadgen
from loadgen.records.results_file import read_results
from serving.main import main

pytestmark = pytest.mark.long

SMALL = ("simulate", "--model", "qwen3-30b-a3b", "--chips", "2", "--rate", "40")
RATE = (*SMALL, "--requests", "300", "--input", "300", "--output", "uniform:1-20")


def simulated(path: Path, *more: str) -> Path:
    assert main([*RATE, *more, "--json", "--results", str(path)]) == 0
    return path


def words(text: str) -> str:
    return " ".join(text.split())


def test_report_reads_the_results_as_a_live_run_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = simulated(tmp_path / "run.jsonl", "--slo", "ttft=1s,tpot=50ms@p99", "--seed", "3")
    figures = json.loads(capsys.readouterr().out)
    record = read_results(path)
    header = record.header

    assert header.command == (
        "ultraserve simulate --model qwen3-30b-a3b --chips 2 --rate 40 --requests 300 --input 300 "
        "--output uniform:1-20 --slo ttft=1s,tpot=50ms@p99 --seed 3 --json"
    )
    assert (header.model, header.seed, header.simulated) == ("qwen3-30b-a3b", 3, True)
    (only,) = header.classes
    assert only.workload.startswith("synthetic, input 300, output uniform:1-20; 300 requests, ")
    assert only.arrivals.words == "Poisson, 40 per emulated s"
    assert (only.sessions, only.requests, only.input_tokens) == (300, 300, 90_000)
    assert loadgen(["report", str(path), "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    said = words(capsys.readouterr().out)

    for name in ("completed_requests", "output_tokens", "output_tokens_per_s"):
        assert report[name] == pytest.approx(figures[name])
    assert report["output_tokens_per_s_per_mw"]["facility"] == pytest.approx(
        figures["output_tokens_per_s_per_mw"]
    )
    assert report["average_watts"] == pytest.approx(figures["facility_watts"])
    assert report["slo"]["kept"]
    assert report["notes"] == []
    assert "300 requests in 300 sessions arrivals Poisson, 40 per emulated s" in said
    assert "not reported" not in said


def test_compare_names_what_two_simulations_have_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        simulated(tmp_path / f"{chips}.jsonl", "--chips", chips, "--max-num-seqs", "64")
        for chips in ("2", "4")
    ]
    capsys.readouterr()
    assert loadgen(["compare", *map(str, paths), "--json", str(tmp_path / "ab.json")]) == 0

    found = json.loads((tmp_path / "ab.json").read_text())
    assert found["settings_apart"] == {
        "server chips": ["2", "4"],
        "server dp": ["2", "4"],
        "server ep": ["2", "4"],
        "server kv_blocks_per_rank": found["settings_apart"]["server kv_blocks_per_rank"],
    }
    of = {(each["figure"], each["statistic"]): each for each in found["differences"]}
    assert of["tpot_ms", "p50"]["verdict"] == "better"
    assert of["average_watts", ""]["relative"] > 0.5
    assert "not the same traffic" not in capsys.readouterr().out


def test_results_do_not_go_over_a_file_and_a_page_is_tried_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("an hour's work\n")
    for more, says in (
        (["--results", str(kept)], "a file that is not there yet, or empty"),
        (["--results", str(tmp_path / "no" / "r.jsonl")], "a file that can be written"),
        (["--html", str(tmp_path / "run.pdf")], "expected a path that ends in .html"),
        (["--html", str(tmp_path / "no" / "run.html")], "a path in a folder that exists"),
        (["--html", f"{kept}.html", "--results", f"{kept}.html"], "another file than --results"),
    ):
        assert main([*RATE, "--requests", "900000", *more]) == 2
        refused = capsys.readouterr()
        assert (refused.out, refused.err.count("\n")) == ("", 1)
        assert says in refused.err
    assert kept.read_text() == "an hour's work\n"
    assert [each.name for each in tmp_path.iterdir()] == ["kept.jsonl"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_ends_a_run_with_its_files(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    results, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    with started("--results", str(results), "--html", str(page), "--json") as process:
        wait_until_it_steps(process)
        process.send_signal(number)
        out, said = process.communicate(timeout=120)

    assert process.returncode == code
    data = json.loads(out)
    record = read_results(results)
    assert record.end is not None
    assert record.end.interrupted
    assert "interrupted, " in said
    done = sum(each.error is None for each in record.results)
    unsent = record.end.sending["default"].unsent
    assert 0 < done == data["completed_requests"]
    assert len(record.results) > done
    assert len(record.results) + unsent == data["requests"]
    assert "interrupted" in page.read_text()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_second_signal_ends_it_at_once(number: signal.Signals, code: int, tmp_path: Path) -> None:
    pipe = tmp_path / "results"
    os.mkfifo(pipe)
    with started("--results", str(pipe)) as process:
        wait_until_it_steps(process)
        process.send_signal(number)
        with pipe.open("rb", buffering=0) as reader:
            assert reader.read(10)  # and no more: the pipe is full, and the writing stands still
            process.send_signal(number)
            assert process.wait(timeout=30) == code


def started(*more: str) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "serving.main", *SMALL, "--requests", "300000")
    return subprocess.Popen(
        [*command, "--input", "300", "--output", "20", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_it_steps(process: subprocess.Popen[str]) -> None:
    """Until it catches the signal, and some seconds of steps more."""
    status = Path(f"/proc/{process.pid}/status")
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        caught = next(line for line in status.read_text().splitlines() if line[:6] == "SigCgt")
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            time.sleep(1.0)
            return
        time.sleep(0.05)
    pytest.fail("the simulation did not begin")
