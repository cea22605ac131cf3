"""The command as its user has it: what is printed where, files, exit codes, one-line refusals."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.main import main
from tests.loadgen.known_server import MODEL, KnownServer

ROOT = Path(__file__).resolve().parents[3]
SHORT = ("--max-input-tokens", "40", "--max-output-tokens", "8", "--quiet")
QUICK = {"ttft_s": (0.002, 0.004), "itl_s": (0.0005, 0.001)}


def recorded(folder: Path, name: str, *words: str) -> Path:
    """The results of a short run."""
    path = folder / name
    with KnownServer(**QUICK).serving() as server:
        run = ["run", "--url", server.url, "--requests", "12", "--concurrency", "4", *SHORT]
        assert main([*run, "--results", str(path), *words]) == 0
    return path


@pytest.mark.process
def test_the_report_goes_to_stdout_and_progress_to_stderr(tmp_path: Path) -> None:
    with KnownServer(**QUICK).serving() as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "loadgen", "run", "--url", server.url, "--requests", "5"),
                *("--concurrency", "2", *SHORT[:-1], "--json", str(tmp_path / "r.json")),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 0
    assert "UltraServe load report" in done.stdout
    assert "repeat: ultraserve-loadgen run --url" in done.stdout
    assert re.search(r"5 completed of 5 .*errors 0", done.stderr)
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["completed_requests"] == 5


@pytest.mark.long
def test_quiet_says_nothing_but_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    with KnownServer(**QUICK).serving() as server:
        words = ["run", "--url", server.url, "--requests", "3", "--concurrency", "3", *SHORT]
        assert main(words) == 0
    shown = capsys.readouterr()

    assert shown.err == ""
    assert "UltraServe load report" in shown.out


@pytest.mark.slow
def test_every_form_is_written_of_a_run(tmp_path: Path) -> None:
    forms = ("json", "csv", "markdown", "html", "csv-requests")
    words = [word for form in forms for word in (f"--{form}", str(tmp_path / form))]
    recorded(tmp_path, "r.jsonl", *words)

    assert json.loads((tmp_path / "json").read_text())["requests"] == 12
    assert (tmp_path / "csv-requests").read_text().count("\n") == 13
    assert "# UltraServe load report" in (tmp_path / "markdown").read_text()
    for form in forms:
        assert (tmp_path / form).stat().st_size > 200


@pytest.mark.long
def test_a_report_made_later_is_the_one_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path, "r.jsonl", "--json", str(tmp_path / "then.json"))
    then = capsys.readouterr().out

    assert main(["report", str(path), "--json", str(tmp_path / "later.json")]) == 0
    assert capsys.readouterr().out == then
    assert (tmp_path / "later.json").read_text() == (tmp_path / "then.json").read_text()


@pytest.mark.long
def test_several_reports_are_printed_but_a_file_is_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(recorded(tmp_path, "r.jsonl"))
    capsys.readouterr()

    assert main(["report", path, path]) == 0
    assert capsys.readouterr().out.count("UltraServe load report") == 2
    assert main(["report", path, path, "--json", str(tmp_path / "r.json")]) == 2
    assert "a file can be written of one run, not of 2" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_differs_from_itself_in_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(recorded(tmp_path, "r.jsonl"))
    capsys.readouterr()

    assert main(["compare", path, path, "--json", str(tmp_path / "c.json")]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["beyond_noise"] == 0
    assert main(["compare", f"{path},{path}", path]) == 0


@pytest.mark.long
def test_a_request_that_failed_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with KnownServer(fail_status=503).serving() as server:
        words = ["run", "--url", server.url, "--requests", "4", "--concurrency", "2", *SHORT]
        assert main(words) == 1

    assert "status 503" in capsys.readouterr().out


@pytest.mark.long
def test_a_run_that_measured_nothing_is_no_success() -> None:
    with KnownServer(**QUICK).serving() as server:
        words = ["run", "--url", server.url, "--requests", "4", "--concurrency", "2", *SHORT]
        assert main([*words, "--skip", "1h", "--duration", "2s"]) == 1


@pytest.mark.process
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
    assert "3 aborted" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--requests", "3000"], "--requests=3000: expected at most 2,000"),
        (["--trace", "nothing.csv"], "nothing.csv: No such file or directory"),
        (["--model", "other"], f"/v1/models: no model 'other'; the server has {MODEL}"),
        (["--rate", "x"], "--rate=x: expected"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with KnownServer().serving() as server:
        code = main(["run", "--url", server.url, "--quiet", *words])
    captured = capsys.readouterr()

    assert (code, captured.out) == (2, "")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--json", "--html", "--csv-requests", "--results"])
def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_sent(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The kernel refuses to make files here, for the superuser too.
    path = "/proc/self/report"
    with KnownServer().serving() as server:
        words = ["run", "--url", server.url, "--requests", "1", *SHORT]
        code = main([*words, option, path])
        assert server.bodies == []
    err = capsys.readouterr().err

    assert code == 2
    assert f"{option}={path}: expected a file that can be written" in err
    assert err.count("\n") == 1


def test_trying_a_file_leaves_none_behind(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("kept")
    for path in (there, tmp_path / "not.json"):
        assert main(["run", "--url", "http://127.0.0.1:9", "--json", str(path), "--quiet"]) == 2

    assert there.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]


def test_a_server_that_is_not_there_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with KnownServer().serving() as server:
        url = server.url  # free again when the server has gone
    assert main(["run", "--url", url, "--quiet"]) == 2

    assert f"{url}/v1/models: cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["walk"], "invalid choice: 'walk'"),
        (["report"], "the following arguments are required: RESULTS"),
        (["report", "nothing.jsonl"], "nothing.jsonl: "),
        (["compare", "a.jsonl"], "the following arguments are required"),
        (["compare", ",", "b"], "expected files with commas in between"),
        (["report", "x", "--class", "a"], "unrecognized arguments: --class a"),
        (["sweep"], "one of the arguments --rates --concurrencies --max-rate is required"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err

    assert message in err
    assert err.count("\n") == 1


@pytest.mark.long
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


@pytest.mark.long
def test_a_results_file_that_holds_a_run_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path, "r.jsonl")
    held = path.read_bytes()
    with KnownServer(**QUICK).serving() as server:
        words = ["run", "--url", server.url, "--requests", "3", "--concurrency", "3", *SHORT]
        assert main([*words, "--results", str(path)]) == 2
        assert server.bodies == []

    assert path.read_bytes() == held
    assert f"--results={path}: expected a file that is not there yet" in capsys.readouterr().err


def test_a_results_file_is_not_there_before_there_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    assert main(["run", "--url", "http://127.0.0.1:9", "--results", str(path), "--quiet"]) == 2
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--json", "a", "--csv", "./a"], "--json and --csv are the same file, a"),
        (["run", "--results", "a", "--png", "a"], "--results and --png are the same file, a"),
        (["run", "--trace", "t.csv", "--csv", "t.csv"], "--trace and --csv are the same file"),
        (["report", "t.csv", "--json", "x/../t.csv"], "the input and --json are the same file"),
        (["report", "x", "--json", "x/sweep.json"], "the input and --json are the same file"),
        (["compare", "t.csv", "u", "--json", "t.csv"], "the input and --json are the same file"),
        (
            ["sweep", "--rates", "1", "--dir", "x", "--json", "x/sweep.json"],
            "the sweep's and --json are the same file",
        ),
    ],
)
def test_a_file_is_of_one_use(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "t.csv").write_text("kept")

    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "t.csv").read_text() == "kept"


@pytest.mark.long
def test_a_header_of_the_environment_goes_out_and_into_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINE", "Bearer hush-1")
    for value in ("@MINE", "Bearer hush-1"):
        path = tmp_path / f"{len(value)}.jsonl"
        with KnownServer(**QUICK).serving() as server:
            words = ["run", "--url", server.url, "--requests", "2", "--concurrency", "2", *SHORT]
            words += ["--results", str(path), "--json", str(tmp_path / "r.json")]
            assert main([*words, "--header", f"Authorization:{value}"]) == 0
        assert "Bearer hush-1" in server.keys
        shown = capsys.readouterr()
        assert "repeat: " in shown.out
        for text in (shown.out, shown.err, path.read_text(), (tmp_path / "r.json").read_text()):
            assert "hush" not in text


def test_words_that_are_no_utf_8_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "a\udcff.json"]) == 2

    err = capsys.readouterr().err
    assert err == (
        "ultraserve-loadgen: 'a\\udcff.json': expected UTF-8: the command is in every report\n"
    )


def test_the_old_spelling_of_classes_warns_of_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--rate", "1", "--class", "a", "--seed", "3"]) == 2
    warning, refusal = capsys.readouterr().err.splitlines()

    assert "warning: --class NAME OPTION ... goes with the next release" in warning
    assert "--traffic-class a: --seed=3 is no option of a class" in refusal
