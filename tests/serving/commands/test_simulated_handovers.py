"""`ultraserve simulate --day-night`: a policy from its flags to the report."""

import json
from pathlib import Path

import pytest

from serving.main import main

SIMULATE = ("simulate", "--model", "qwen3-30b-a3b", "--input", "300", "--output", "uniform:1-5")
ENGINES = (*SIMULATE, "--chips", "4", "--replicas", "3", "--router", "least-loaded")
NEVER = ("--day-night", "never", "--lend-chips", "8")
FEW = ("--rate", "20", "--requests", "60")
NIGHT = ("--schedule", "00:00-06:00", "--day-length", "60s", "--start-seconds", "0")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_engines_of_several_train_and_the_report_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*ENGINES, "--rate", "20", "--requests", "800", *NIGHT, "--lend-chips", "8")
    data = json.loads(said(capsys, *asked, "--json"))
    assert data["completed_requests"] == 800
    found = data["handovers"]
    assert found["policy"] == "schedule:00:00-06:00@UTC"
    assert (found["handovers"], found["job_starts"], found["refused"]) == (4, 1, 0)
    assert found["trained_tokens"] > 0
    assert 8 * 15 < found["leased_chip_s"] < 8 * 40
    names = ("inference_joules", "training_joules", "handover_joules")
    assert sum(found[name] for name in names) == pytest.approx(data["joules"])

    text = said(capsys, *asked)
    assert "day and night  schedule:00:00-06:00@UTC: 4 hand-overs" in text
    assert f"{found['trained_tokens']:,} tokens in {found['trained_steps']:,} steps" in text
    assert "J of inference" in text


@pytest.mark.long
def test_an_engine_s_groups_are_the_fewest_chips_that_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*SIMULATE, "--chips", "16", *FEW, *NIGHT, "--json")
    assert json.loads(said(capsys, *asked))["handovers"]["handovers"] == 1
    more = (*asked, "--seeds", "2", "--processes", "1")
    runs = json.loads(said(capsys, *more))["runs"]
    assert [each["handovers"]["handovers"] for each in runs] == [1, 1]


@pytest.mark.long
def test_without_a_policy_nothing_is_said_of_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = (*SIMULATE, "--chips", "4", *FEW)
    assert "handovers" not in json.loads(said(capsys, *asked, "--json"))
    assert "day and night" not in said(capsys, *asked)
    path = tmp_path / "run.jsonl"
    said(capsys, *ENGINES, *FEW, *NEVER, "--results", str(path))
    assert '"day_night":"never"' in path.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--day-night", "sometimes"], "policy=sometimes: expected never, fixed:GROUPS"),
        (["--day-night", "manual"], "policy=manual: expected one that decides"),
        (["--day-night", "oracle"], "policy=oracle: expected a policy that need not know the day"),
        (["--day-length", "9s"], "day_length=9s: expected --day-night or --schedule with it"),
        (["--start-seconds", "1"], "start_seconds=1.0: expected --day-night or --schedule with it"),
        (["--day-night", "never", "--day-start", "now"], "day_start=now: expected HH:MM"),
        (["--day-night", "never", "--day-start", "x"], "day_start=x: expected HH:MM"),
        (["--day-night", "never", "--day-length", "0"], "day_length=0s: expected at least 1"),
        (["--day-night", "never", "--group-chips", "2"], "group_chips=2: expected 4, all of an"),
        (["--day-night", "never", "--group-chips", "0"], "group_chips=0: expected whole ranks of"),
        (
            ["--day-night", "never", "--tp", "2", "--group-chips", "3"],
            "group_chips=3: expected whole ranks of 2 chips",
        ),
        (["--day-night", "never", "--lend-chips", "6"], "lend_chips=6: expected whole groups of 4"),
        (["--day-night", "never", "--lend-chips", "12"], "lend_chips=12: expected 4 to 8 chips"),
        (["--day-night", "never", "--lend-chips", "4"], "a training state of qwen3-30b-a3b fits"),
        (["--day-night", "never", "--lend-chips", "0"], "lend-chips=0: expected at least 1"),
        (["--day-night", "demand", "--slo", "tpot=1us"], "policy=demand: expected --group-reque"),
        (["--day-night", "never", "--group-requests-per-s", "0"], "group_requests_per_s=0.0"),
        (["--day-night", "never", "--start-seconds", "-1"], "start-seconds=-1.0: expected from 0"),
        (
            ["--day-night", "never", "--schedule", "1:0-2:0"],
            "schedule=1:0-2:0: expected one",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ENGINES, *FEW, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_an_engine_that_cannot_train_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATE, "--chips", "8", *FEW, "--day-night", "never"]) == 2
    assert "chips=8: expected more: a training state" in capsys.readouterr().err
