import json
from pathlib import Path

import pytest

from serving.main import main
from tests.golden import GoldenFolder
from tests.serving.analysis.validate.made_up_measurements import VARIED, write_rows


@pytest.mark.slow
def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.csv")

    assert main(["validate", "--data", str(path), "--json"]) == 0

    data = json.loads(capsys.readouterr().out)
    assert len(data["rows"]) == len(VARIED)
    assert {"rows", "excluded", "tpot", "ttft", "tokens_per_s", "references"} <= set(data)


@pytest.mark.slow
def test_every_row_is_printed_and_a_picture_is_written_beside_them(
    golden: GoldenFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, picture = (
        write_rows(tmp_path / "rows.csv", [*VARIED, {"usable": "0"}]),
        tmp_path / "p.svg",
    )

    assert main(["validate", "--data", str(path), "--plot", str(picture)]) == 0

    printed = capsys.readouterr()
    golden.holds("validate.txt", printed.out)
    assert picture.read_text().startswith("<svg")
    assert f"wrote {picture}" in printed.err


def test_without_data_one_line_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ULTRASERVE_MEASUREMENTS", raising=False)

    assert main(["validate"]) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--data FILE" in error


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--plot", "plot.pdf"], "plot=plot.pdf: expected a path that ends in .png, .svg, .html"),
        (["--plot", "none/plot.png"], "a path in a folder that exists"),
        (["--refit", "none/fit.json"], "a path in a folder that exists"),
        (["--data", "none.csv"], "a file that can be read"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    flags: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = [] if "--data" in flags else ["--data", str(write_rows(tmp_path / "rows.csv", [{}]))]

    assert main(["validate", *data, *flags]) == 2

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
