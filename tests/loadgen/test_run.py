"""Whole runs of the command, most of them in this process, against a server of known delays."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.main import main
from tests.loadgen.known_server import MODEL, KnownServer

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--max-input-tokens", "40", "--max-output-tokens", "8", "--quiet")


class Dilated:
    """The output of one run as a process of its own, against a server with a dilation of 4.

    Delays are long enough for 2 % of them to be more than the noise of a busy machine.
    """

    def __init__(self, folder: Path) -> None:
        known = KnownServer(dilation=4.0, seed=5, ttft_s=(0.2, 0.6), itl_s=(0.03, 0.09))
        with known.serving() as server:
            words = ["run", "--url", server.url, "--requests", "50", "--rate", "100"]
            words += ["--max-input-tokens", "40", "--max-output-tokens", "10"]
            words += ["--json", str(folder / "r.json"), "--results", str(folder / "r.jsonl")]
            self.process = subprocess.run(
                [sys.executable, "-m", "loadgen", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            self.replies = server.replies[1:]  # the first was the warm-up's
            self.bodies = server.bodies[1:]
        self.report: dict[str, Any] = json.loads((folder / "r.json").read_text())
        self.lines = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]

    def wrong_figures(self) -> set[str]:
        """The percentiles that are further from what the server did than 2 % and 2 wall ms."""
        truth_s = {
            "ttft_ms": [reply.ttft_s for reply in self.replies],
            "ttft_from_send_ms": [reply.ttft_s for reply in self.replies],
            "tpot_ms": [reply.tpot_s for reply in self.replies],
            "e2e_ms": [reply.e2e_s for reply in self.replies],
        }
        wrong = set()
        for name, known_s in truth_s.items():
            for percentile in (50, 90, 99):
                known_ms = 1e3 * float(np.percentile(known_s, percentile))
                measured_ms = 4 * self.report[name][f"p{percentile}"]
                if measured_ms != pytest.approx(known_ms, rel=0.02, abs=2.0):
                    wrong.add(f"{name} p{percentile}")
        return wrong


@pytest.fixture(scope="module")
def dilated(tmp_path_factory: pytest.TempPathFactory) -> Dilated:
    return Dilated(tmp_path_factory.mktemp("dilated"))


def test_a_run_ends_well_and_prints_its_report_to_stdout_and_its_progress_to_stderr(
    dilated: Dilated,
) -> None:
    assert dilated.process.returncode == 0
    assert "UltraServe load report" in dilated.process.stdout
    assert re.search(r"^50/50  .*errors 0", dilated.process.stderr, re.MULTILINE)
    assert "Traceback" not in dilated.process.stderr


def test_measured_latencies_are_a_quarter_of_the_server_s_known_wall_delays(
    dilated: Dilated, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wrong = dilated.wrong_figures()
    # Other work on the machine may hold up a client for many ms, now here and now there. One that
    # measures wrongly is wrong in the same place every time.
    for _ in range(3):
        if wrong:
            wrong &= Dilated(tmp_path_factory.mktemp("again")).wrong_figures()

    assert wrong == set()


def test_counts_energy_and_clock_of_the_run_are_the_server_s(dilated: Dilated) -> None:
    report = dilated.report

    assert (report["requests"], report["failed_requests"]) == (50, 0)
    assert report["output_tokens"] == sum(body["max_tokens"] for body in dilated.bodies)
    assert report["input_tokens"] == sum(len(body["prompt"]) for body in dilated.bodies)
    assert (report["dilation"], report["time"], report["chips"]) == (4.0, "emulated", 4.0)
    assert (report["time_model"], report["weights"]) == ("big", "small")
    assert report["wall_s"] == pytest.approx(4 * report["emulated_s"])
    assert report["average_watts"] == pytest.approx(500)
    rate = report["output_tokens"] / report["emulated_s"]
    assert report["output_tokens_per_s"] == pytest.approx(rate)
    assert report["output_tokens_per_s_per_mw"]["facility"] == pytest.approx(rate / 500e-6)
    assert report["output_tokens_per_s_per_mw"]["provisioned"] == pytest.approx(rate / 2000e-6)
    assert report["lag_s"] == pytest.approx(report["metered_s"] / 100)


def test_a_rate_is_per_emulated_second(dilated: Dilated) -> None:
    # 100 per emulated second at a dilation of 4 are 25 per wall second: 50 take about 2 s.
    due_s = [line["intended_ns"] / 1e9 for line in dilated.lines]

    assert max(due_s) == pytest.approx(2.0, rel=0.45)  # 49 exponential gaps: three deviations


def test_the_results_file_holds_every_request_once_with_all_its_times(dilated: Dilated) -> None:
    assert sorted(line["id"] for line in dilated.lines) == list(range(50))
    for line in dilated.lines:
        times = [line["intended_ns"], line["sent_ns"], *line["chunk_ns"]]
        assert times == sorted(times)
        assert (line["first_token_ns"], line["last_ns"]) == (times[2], times[-1])
        assert len(line["chunk_ns"]) == line["output_tokens"] == line["asked_output_tokens"]
        assert (line["dilation"], line["error"]) == (4.0, None)


def test_wall_time_rates_are_not_stretched(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    with KnownServer(dilation=4.0).serving() as server:
        code = main(
            [
                *("run", "--url", server.url, "--requests", "5", "--rate", "50", "--wall-time"),
                *("--arrivals", "constant", "--results", str(results), *SHORT),
            ]
        )
    due_ms = [json.loads(line)["intended_ns"] / 1e6 for line in results.read_text().splitlines()]

    assert code == 0
    assert sorted(due_ms) == [0, 20, 40, 60, 80]


def test_a_failing_server_is_counted_by_kind_and_makes_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    words = ["--requests", "4", "--concurrency", "2", "--json", str(path), *SHORT]
    for server, kind in (
        (KnownServer(fail_status=503), "status 503"),
        (KnownServer(fail_in_stream=True), "stream"),
        (KnownServer(fail_by_closing=True), "connection"),
    ):
        with server.serving():
            assert main(["run", "--url", server.url, *words]) == 1
        report = json.loads(path.read_text())

        assert report["errors"] == {kind: 4}
        assert (report["requests"], report["failed_requests"]) == (4, 4)
        assert report["output_tokens_per_s"] is None
        assert f"4 x {kind}: " in capsys.readouterr().out


def test_ctrl_c_aborts_what_is_under_way_and_still_reports(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with KnownServer(dilation=2.0, endless=True).serving() as server:
        words = ["run", "--url", server.url, "--concurrency", "3", "--warmup", "0", "--quiet"]
        process = subprocess.Popen(
            [sys.executable, "-m", "loadgen", *words, "--json", str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        give_up_s = time.monotonic() + 30
        while len(server.replies) < 3 and time.monotonic() < give_up_s:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    report = json.loads(path.read_text())

    assert process.returncode == 130
    assert (err, report["errors"]) == ("", {"aborted": 3})
    assert (report["aborted_requests"], report["failed_requests"]) == (3, 0)
    assert report["attack"] == {"held_back": 0, "unsent": 1997, "interrupted": True}
    assert "0 completed, 0 failed, 3 aborted" in out


def test_a_server_without_a_tokenizer_is_driven_with_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    with KnownServer(with_tokenizer=False).serving() as server:
        words = ["run", "--url", server.url, "--requests", "3", "--concurrency", "3", *SHORT]
        assert main(words) == 2
        assert "--prompts text needs no tokenizer" in capsys.readouterr().err
        assert main([*words, "--prompts", "text", "--json", str(path)]) == 0
        prompts = [body["prompt"] for body in server.bodies[1:]]

    assert [len(prompt.split()) for prompt in prompts] == [40] * 3
    assert json.loads(path.read_text())["input_tokens"] == 120


def test_replies_that_are_shorter_than_asked_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with KnownServer(max_tokens_served=5, tokens_per_chunk=2).serving() as server:
        main(
            [
                *("run", "--url", server.url, "--requests", "3", "--concurrency", "3"),
                *("--json", str(path), *SHORT),
            ]
        )
    report = json.loads(path.read_text())

    assert report["output_tokens"] == 15
    assert any("3 replies have another length" in note for note in report["notes"])
    assert any("15 tokens came in 9 chunks" in note for note in report["notes"])


def test_requests_beyond_the_model_s_context_are_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with KnownServer(context_tokens=47).serving() as server:
        main(["run", "--url", server.url, "--requests", "3", "--concurrency", "3", *SHORT])

    assert "3 requests are longer than the model's context of 47 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--requests", "3000"], "--requests=3000: expected at most 2000, the rows of"),
        (["--trace", "nothing.csv"], "nothing.csv: No such file or directory"),
        (["--model", "other"], f"/v1/models: no model 'other'; the server has {MODEL}"),
        (["--rate", "x"], "argument --rate"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with KnownServer().serving() as server:
        code = main(["run", "--url", server.url, *words])
    captured = capsys.readouterr()

    assert (code, captured.out) == (2, "")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--json", "--results"])
def test_a_file_that_cannot_be_written_is_one_line_and_exit_code_2(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The kernel refuses to make files here, for the superuser too.
    path = "/proc/self/report"
    with KnownServer().serving() as server:
        words = ["run", "--url", server.url, "--requests", "1", *SHORT]
        code = main([*words, option, path])
    err = capsys.readouterr().err

    assert code == 2
    assert f"{option}={path}: expected a file that can be written" in err
    assert err.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with KnownServer().serving() as server:
        url = server.url  # free again when the server has gone
    assert main(["run", "--url", url]) == 2

    assert f"{url}/v1/models: cannot be reached" in capsys.readouterr().err


def test_the_same_seed_sends_the_same_prompts() -> None:
    def prompts(seed: str) -> list[Any]:
        with KnownServer().serving() as server:
            words = ["run", "--url", server.url, "--requests", "4", "--concurrency", "4"]
            main([*words, "--seed", seed, *SHORT])
        return sorted(body["prompt"] for body in server.bodies)

    assert prompts("1") == prompts("1")
    assert prompts("1") != prompts("2")


def test_the_key_goes_with_every_request_and_into_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    for key, sent in (("a-key-of-one-s-own", {"Bearer a-key-of-one-s-own"}), ("", {None})):
        monkeypatch.setenv("ULTRASERVE_API_KEY", key)
        with KnownServer(dilation=1.0).serving() as server:
            words = ["run", "--url", server.url, "--requests", "2", "--concurrency", "2", *SHORT]
            assert main([*words, "--json", str(path)]) == 0
        assert server.keys == sent
    shown = capsys.readouterr()
    assert "a-key-of-one-s-own" not in f"{path.read_text()}{shown.out}{shown.err}"
