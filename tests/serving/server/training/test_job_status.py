from dataclasses import replace
from pathlib import Path

from serving.server.training.job_status import (
    Curve,
    CurvePoint,
    JobStatus,
    TrainingPhase,
    read_curve,
    read_status,
    write_status,
)

STATUS = JobStatus(
    phase=TrainingPhase.TRAINING, pid=7, chips=2, step=3, steps=9, tokens=30, loss=1.25
)
POINT = CurvePoint(
    step=1,
    tokens=10,
    loss=1 / 3,
    balance=0.1,
    gradient_norm=2.0,
    learning_rate=1e-3,
    imbalance=1.5,
    emulated_ns=5,
    joules=0.5,
)


def test_a_status_comes_back_whole(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None

    write_status(tmp_path, STATUS)
    assert read_status(tmp_path) == STATUS

    write_status(tmp_path, replace(STATUS, phase=TrainingPhase.DONE))
    assert read_status(tmp_path) == replace(STATUS, phase=TrainingPhase.DONE)


def test_a_status_that_is_not_ours_is_none(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"phase": "resting"}', encoding="utf-8")

    assert read_status(tmp_path) is None


def test_a_curve_is_rewound_to_a_step_and_goes_on_from_there(tmp_path: Path) -> None:
    curve = Curve(tmp_path)
    for step in range(1, 6):
        curve.append(replace(POINT, step=step))
    with (tmp_path / "curve.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "tok')  # its writer was killed

    curve.rewind(3)
    curve.append(replace(POINT, step=4, loss=0.5))

    points = read_curve(tmp_path / "curve.jsonl")
    assert [point.step for point in points] == [1, 2, 3, 4]
    assert points[2] == replace(POINT, step=3)  # every bit of its numbers
    assert points[3].loss == 0.5
