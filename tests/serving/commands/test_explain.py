"""`ultraserve explain`: its subjects, files and refusals."""

import json
from pathlib import Path

import pytest

from emulator.specs.shipped_fits import shipped_fits
from serving.analysis.validate.validation import validation_of
from serving.main import main
from tests.serving.analysis.validate.made_up_measurements import write_rows

STEP = ("explain", "step", "--model", "gpt-oss-20b", "--chips", "2", "--context", "500")
PARETO = (
    *("pareto", "--model", "gpt-oss-20b", "--systems", "trn3-nl72x2", "--processes", "1"),
    *("--tp", "1,2", "--ep", "2", "--lnc", "2", "--batch", "4", "--precision", "fp8"),
    *("--assumption", "links=tenth", "--prefill-tokens", "700"),
)


def as_json(capsys: pytest.CaptureFixture[str], *command: str) -> dict:  # type: ignore[type-arg]
    assert main([*command, "--json", "-"]) == 0
    found: dict = json.loads(capsys.readouterr().out)  # type: ignore[type-arg]
    return found


@pytest.mark.long
def test_json_has_terms_that_sum_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys, *STEP)

    assert sum(term["ns"] for term in data["terms"]) == pytest.approx(data["step_ns"])
    figures = [figure for term in data["terms"] for figure in term["figures"]]
    assert all(figure["source"] for figure in figures)
    assert {figure["name"] for figure in figures if figure["assumed"]} >= {"step_ns", "turn_taking"}
    least, most = data["interval_ns"]
    known = shipped_fits().intervals["tpot"]
    assert (least, most) == (known.least * data["step_ns"], known.most * data["step_ns"])


@pytest.mark.long
def test_a_drafting_model_adds_its_own_steps_and_lies_in_the_hbm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = ("explain", "step", "--model", "llama-3.1-70b", "--chips", "4", "--tp", "4")
    drafts = ("--speculative-tokens", "2", "--draft-method", "draft_model", "--acceptance", "0.5")
    plain = as_json(capsys, *step)
    found = as_json(capsys, *step, *drafts, "--draft-model", "llama-3.1-8b")

    assert found["draft_model"] == "llama-3.1-8b"
    assert found["tokens_per_step"] == 1.75
    assert sum(term["ns"] for term in found["terms"]) == pytest.approx(found["step_ns"])
    of_drafts = {term["part"] for term in found["terms"] if term["part"].startswith("draft ")}
    assert {"draft attention", "draft dense"} <= of_drafts
    assert not any(term["part"].startswith("draft ") for term in plain["terms"])
    assert main([*step, *drafts]) == 2
    assert "draft_model=None: expected the model that drafts" in capsys.readouterr().err
    full = ("--batch", "250", "--context", "2000")
    assert main([*step, *full, "--json", "-"]) == 0
    assert main([*step, *full, *drafts, "--draft-model", "llama-3.1-8b"]) == 2
    assert "tokens of KV on a rank" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("serving", ["aggregated", "disaggregated"])
def test_a_points_step_is_the_files(
    serving: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "pareto.json")
    assert main([*PARETO, "--serving", serving, "--json", path]) == 0
    capsys.readouterr()
    points = json.loads(Path(path).read_text())["machines"][0]["points"]
    for place, point in enumerate(points):
        data = as_json(capsys, "explain", "point", path, "--point", str(place))
        assert data["step_ns"] == pytest.approx(point["tpot_ns"], rel=1e-6)
        assert data["compared"][0]["ns"] == point["tpot_ns"]
        assert data["assumptions"] == ["links=tenth"]
    if serving == "aggregated":
        data = as_json(capsys, "explain", "point", path, "--point", "0", "--prompt")
        assert data["step_ns"] == pytest.approx(points[0]["ttft_ns"], rel=1e-6)
    assert main(["explain", "point", path, "--point", "99"]) == 2
    assert "point=99: expected 0 to" in capsys.readouterr().err


@pytest.mark.slow
def test_a_points_split_of_attention_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "pareto.json")
    latent = (
        *("pareto", "--model", "deepseek-v3", "--systems", "trn3-nl72x2", "--processes", "1"),
        *("--chips", "16", "--tp", "1", "--ep", "16", "--lnc", "2", "--batch", "6"),
        *("--precision", "fp8", "--json", path),
    )
    assert main([*latent]) == 0
    capsys.readouterr()
    points = json.loads(Path(path).read_text())["machines"][0]["points"]

    assert {each["attention_split"] for each in points} == {"heads", "batch", "sequence"}
    assert len({each["tpot_ns"] for each in points}) == 3
    for place, point in enumerate(points):
        data = as_json(capsys, "explain", "point", path, "--point", str(place))
        assert data["step_ns"] == pytest.approx(point["tpot_ns"], rel=1e-6)


@pytest.mark.process
def test_a_plans_partition_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = (
        *("plan", "--model", "qwen3-30b-a3b", "--slo", "ttft=300ms,tpot=20ms@p90", "--json"),
        *("--chips", "1", "--lnc", "2", "--requests", "30", "--processes", "1", "--tries", "1"),
        *("--rate", "60", "--input", "400", "--output", "12"),
    )
    assert main([*plan]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    candidate = json.loads(path.read_text())["candidates"][0]

    data = as_json(capsys, "explain", "point", str(path))

    assert data["subject"].startswith("the plan of plan.json")
    assert data["step_ns"] == pytest.approx(candidate["tpot_s"] * 1e9, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    "row", [{}, {"spec_method": "mtp"}, {"precision": "fp4", "hardware": "b200"}]
)
def test_a_row_is_predicted_as_validation_does(
    row: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "rows.csv", [{}, row])
    validation = validation_of([path])
    blind = validation.blind(1, "tpot")
    assert blind is not None

    data = as_json(capsys, "explain", "row", "--data", str(path), "--row", "3")

    (compared,) = data["compared"]
    assert compared["predicted_ns"] == pytest.approx(blind * 1e9, rel=1e-6)
    assert sum(term["ns"] for term in data["terms"]) == pytest.approx(data["step_ns"])
    held_ns = compared["predicted_ns"] - data["step_ns"] / data["tokens_per_step"]
    assert abs(held_ns) < compared["predicted_ns"] / 2  # prompts of others, other batches


@pytest.mark.long
def test_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png, svg = tmp_path / "step.png", tmp_path / "step.svg"
    assert main([*STEP, "--plot", str(png), "--plot", str(svg)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "engines take turns" in svg.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*STEP, "--plot", "step.jpg"), "plot=step.jpg: expected a path that ends in .png"),
        ((*STEP, "--batch", "0"), "batch=0: expected at least 1 without prefill tokens"),
        ((*STEP, "--batch", "9999", "--context", "90000"), "tokens of KV on a rank"),
        ((*STEP, "--json", "/nowhere/step.json"), "a path in a folder that exists"),
        (("explain", "point", "/nowhere.json"), "a file that can be read"),
        (("explain", "row", "--data", "/nowhere.csv", "--row", "2"), "a file that can be read"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ultraserve explain: ")
    assert said in line


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"machines": [{"system": "trn3-nl72x2"}]}')
    assert main(["explain", "point", str(path)]) == 2
    assert "ultraserve pareto --json" in capsys.readouterr().err


@pytest.mark.long
def test_a_line_without_a_row_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "rows.csv", [{}, {"usable": "0"}])
    for line, said in (("9", "a line of rows.csv, 2 to 2"), ("3", "a usable row")):
        assert main(["explain", "row", "--data", str(path), "--row", line]) == 2
        assert said in capsys.readouterr().err
