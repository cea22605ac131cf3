"""`ultraserve simulate --seeds`: the runs of those seeds, and their spread."""

import json

import pytest

from serving.main import main

RUN = (
    *("simulate", "--model", "qwen3-30b-a3b", "--chips", "2", "--rate", "40"),
    *("--requests", "40", "--input", "300", "--output", "uniform:1-20", "--slo", "ttft=60ms"),
)
STUDENT = 12.706204736  # 97.5 % of Student's t with one degree of freedom


def data_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*RUN, *arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for run in [data, *data.get("runs", [])]:
        for name in ("wall_s", "compile_s"):
            run.pop(name, None)
    assert isinstance(data, dict)
    return data


def test_they_are_the_runs_of_each_seed_with_mean_and_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = [data_of(capsys, "--seed", seed) for seed in ("7", "8")]
    both = data_of(capsys, "--seed", "7", "--seeds", "2", "--processes", "1")

    assert both["seeds"] == [7, 8]
    assert both["runs"] == alone
    first, second = (run["joules"] for run in alone)
    assert isinstance(first, float)
    assert isinstance(second, float)
    mean, half = (first + second) / 2, STUDENT * abs(first - second) / 2
    figures = both["figures"]
    assert isinstance(figures, dict)
    assert figures["joules"] == {
        "value": pytest.approx(mean),
        "low": pytest.approx(mean - half, rel=1e-5),
        "high": pytest.approx(mean + half, rel=1e-5),
    }
    kept = figures["kept.both"]
    assert 0 <= kept["low"] < kept["value"] < kept["high"] <= 1
    assert not {"wall_s", "compile_s"} & set(figures)


@pytest.mark.slow
@pytest.mark.process
def test_processes_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--seeds", "3", "--processes")

    assert data_of(capsys, *asked, "2") == data_of(capsys, *asked, "1")


def test_words_have_a_line_for_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--seeds", "2", "--processes", "1"]) == 0

    said = capsys.readouterr()
    assert "2, seeds 0 to 1" in said.out
    assert "80 completed" in said.out
    assert "TTFT, ms p99" in said.out
    assert "share that keeps the target both" in said.out
    assert said.err.splitlines() == ["seed 0: done, 1 of 2", "seed 1: done, 2 of 2"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--seeds", "1"], "seeds=1: expected at least 2"),
        (["--processes", "2"], "processes=2: expected nothing without --seeds"),
        (["--ray-address", "auto"], "ray-address=auto: expected nothing without --seeds"),
        (["--seeds", "2", "--processes", "0"], "processes=0: expected at least 1"),
        (["--seeds", "2", "--ray-address", "nowhere"], "ray_address=nowhere: expected a running"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *more]) == 2

    refused = capsys.readouterr()
    assert refused.out == ""
    assert says in refused.err
    assert refused.err.count("\n") == 1
