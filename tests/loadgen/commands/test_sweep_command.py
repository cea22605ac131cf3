"""The command `sweep` against a known server; its decisions are tested in virtual time."""

import json
import re
from pathlib import Path

import pytest

from loadgen.main import main
from tests.loadgen.known_server import KnownServer

SHORT = ("--max-input-tokens", "40", "--max-output-tokens", "4", "--quiet")


def swept(folder: Path, *words: str, **server: object) -> int:
    with KnownServer(ttft_s=(0.002, 0.004), itl_s=(0.0005, 0.001), **server).serving() as known:
        command = ["sweep", "--url", known.url, "--dir", str(folder), *SHORT]
        return main([*command, *words])


@pytest.mark.long
def test_a_sweep_leaves_its_runs_its_record_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deep" / "sweep"
    words = ("--concurrencies", "1-4x2", "--requests", "30", "--slo", "ttft=5s,e2e=9s@p50")
    code = swept(folder, *words, "--json", str(tmp_path / "s.json"), dilation=2.0)
    then = capsys.readouterr()
    record = json.loads((folder / "sweep.json").read_text())

    assert (code, then.err) == (0, "")
    assert "UltraServe sweep" in then.out
    names = [f"00{place}-concurrency-{load}.jsonl" for place, load in ((1, 1), (2, 2), (3, 4))]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "sweep.json"]
    assert [point["results"] for point in record["points"]] == names
    assert (record["time"], record["best"]["load"], record["best"]["above"]) == (
        "emulated",
        4,
        None,
    )
    assert record["pareto_per_mw"]
    assert record["pareto_per_chip"]
    assert json.loads((tmp_path / "s.json").read_text())

    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == then.out
    assert main(["report", str(folder / names[0])]) == 0
    shown = capsys.readouterr().out
    assert "closed loop" in shown
    assert re.search(r"repeat: .* run .*--seed 0 --requests 30 --concurrency 1\n", shown)


@pytest.mark.long
def test_one_class_is_varied_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    words = ("--rates", "50,100", "--vary", "chat", "--requests", "12")
    classes = ("--traffic-class", "chat", "--traffic-class", "batch concurrency=2 requests=6")
    code = swept(tmp_path / "s", *words, *classes)
    header = json.loads((tmp_path / "s" / "002-rate-100.jsonl").read_text().splitlines()[0])
    chat, batch = header["run"]["classes"]

    assert code == 0
    assert "100 per" in chat["arrivals"]["words"]
    assert batch["arrivals"]["concurrency"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rates", "none"], "--rates=none: expected loads such as 1,2,4,8"),
        (["--rates", "1", "--max-rate", "2"], "not allowed with argument"),
        (["--rates", "1", "--rate", "2"], "unrecognized arguments: --rate 2"),
        (["--concurrencies", "1.5"], "--concurrencies=1.5: expected whole numbers"),
        (["--rates", "1", "--vary", "other"], "--vary=other: expected default"),
        (
            ["--rates", "1", "--traffic-class", "a", "--traffic-class", "b rate=1"],
            "with several classes a sweep needs --vary: one of the classes a, b",
        ),
        (
            ["--rates", "1", "--dir", "/proc/self/sweep"],
            "--dir=/proc/self/sweep: expected a folder",
        ),
        (["--rates", "1", "--precision", "0"], "argument --precision: expected a number above 0"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = [] if "--dir" in words else ["--dir", str(tmp_path / "s")]
    common = ["sweep", "--url", "http://127.0.0.1:9", "--quiet", "--requests", "5", *folder]
    assert main([*common, *words]) == 2
    err = capsys.readouterr().err

    assert message in err
    assert err.count("\n") == 1


def test_a_folder_with_a_sweep_in_it_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.json").write_text("{}")

    assert swept(tmp_path, "--rates", "9", "--requests", "3") == 2
    assert "expected a folder that is not there yet, or empty" in capsys.readouterr().err
