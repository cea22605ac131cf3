"""A sweep's file gives back what was written, and refuses anything else."""

import json
from pathlib import Path

import pytest

from loadgen.errors import FileError, OptionError
from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import (
    BestLoad,
    BoundShare,
    Knee,
    PointFigures,
    SaturationFound,
    SweepPoint,
    SweepRecord,
    read_sweep,
    write_sweep,
)

POINT = SweepPoint(
    load=4.0,
    stage="grid",
    results="001-rate-4.jsonl",
    seed=3,
    requests=100,
    figures=PointFigures(
        requests_per_s=Estimate(value=4.1, low=3.9, high=4.3), tokens_per_s_per_chip=12.5
    ),
    saturation=SaturationFound(over=False, words="steady", growth_share=0.01, deviations=0.2),
    bounds=(
        BoundShare(
            traffic_class="default",
            words="ttft=200ms@p99",
            needed=0.99,
            share=1.0,
            low=0.98,
            high=1.0,
            samples=100,
            effective=80.0,
            verdict="undecided",
        ),
    ),
    verdict="undecided",
    warnings=("one",),
)
SWEEP = SweepRecord(
    command="ultraserve-loadgen sweep",
    url="http://h",
    model="m",
    axis="rate",
    time="emulated",
    workload="w",
    started_at="2026-01-01T00:00:00Z",
    points=(POINT,),
    stopped="every load was run",
    knee=Knee(load=4, requests_per_s=4.1, e2e_mean_ms=90, power=45.6, low=4, high=4, at_edge=True),
    best=BestLoad(load=None, above=4.0, slo="ttft=200ms", confidence=0.95, words="none"),
    pareto_per_chip=(0,),
    notes=("note",),
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep.json", SWEEP)

    assert read_sweep(tmp_path / "sweep.json") == SWEEP


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "not a sweep"),
        ('{"format": "other/1"}', "not a sweep of the format ultraserve-loadgen-sweep/1"),
        ('{"format": "ultraserve-loadgen-sweep/1"}', "missing required field"),
    ],
)
def test_another_file_is_refused_with_its_name_and_why(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)

    with pytest.raises(FileError, match=reason) as caught:
        read_sweep(path)
    assert str(path) in str(caught.value)


def test_a_value_of_another_kind_is_refused_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    write_sweep(path, SWEEP)
    fields = json.loads(path.read_text())
    fields["points"][0]["load"] = "four"
    path.write_text(json.dumps(fields))

    with pytest.raises(FileError, match=r"points\[0\]\.load|points\[...\]\.load"):
        read_sweep(path)


def test_a_file_that_is_not_there_and_a_folder_that_cannot_be_written_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_sweep(tmp_path / "sweep.json")
    with pytest.raises(OptionError, match="--dir="):
        write_sweep(tmp_path / "nowhere" / "sweep.json", SWEEP)
