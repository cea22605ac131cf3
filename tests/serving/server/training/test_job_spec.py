from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.server.training.job_spec import (
    MAY_CHANGE,
    JobSpec,
    TrainingPace,
    check_same_job,
    read_spec,
)

SPEC = JobSpec(weights="w")


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"chips": 0}, "chips=0: expected a whole number of at least 1"),
        ({"steps": 1.5}, "steps=1.5: expected a whole number of at least 1"),
        ({"batch_tokens": 1000}, "batch_tokens=1000: expected whole sequences of 256 tokens"),
        (
            {"chips": 5, "batch_tokens": 1024},
            "batch_tokens=1024: expected at least one sequence of 256 tokens for each of 5 chips "
            "in each of 1 micro-batches",
        ),
        ({"precision": "fp8"}, "precision=fp8: expected bf16 or fp32"),
        ({"schedule": "linear"}, "schedule=linear: expected constant or cosine or wsd"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0: expected a number above 0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0: expected a number above 0"),
        ({"dilation": 0.0}, "dilation=0.0: expected a number above 0"),
        ({"first_save_steps": 0}, "first_save_steps=0: expected a whole number of at least 1"),
        ({"lnc": 0}, "lnc=0: expected a whole number of at least 1"),
        ({"pace": "slow"}, "pace=slow: expected real or fast-forward"),
        (
            {"pace": TrainingPace.FAST_FORWARD},
            "pace=fast-forward: expected real without a dilation",
        ),
        ({"weight_decay": float("nan")}, "weight_decay=nan: expected a number of at least 0"),
    ],
)
def test_what_makes_no_job_is_refused_by_name(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        replace(SPEC, **wrong)

    assert str(refused.value) == line


def test_a_spec_comes_back_from_its_file(tmp_path: Path) -> None:
    spec = replace(SPEC, fresh_seed=4, dilation=2.5, model="gpt-oss-120b")
    (tmp_path / "job.json").write_bytes(spec.to_json())

    assert read_spec(tmp_path / "job.json") == spec


def test_a_file_that_is_no_spec_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"weights": 3}', encoding="utf-8")

    with pytest.raises(ConfigError, match=r"^dir=.*expected a training job"):
        read_spec(tmp_path / "job.json")


def test_micro_batches_are_as_few_as_fit() -> None:
    spec = replace(SPEC, batch_tokens=256 * 10, chips=2, micro_batch_tokens=256 * 2)

    assert (spec.sequences, spec.micro_batches) == (10, 3)
    assert replace(spec, micro_batch_tokens=1).micro_batches == 5  # never below one sequence


def test_a_job_may_go_on_with_other_chips_and_not_with_another_seed() -> None:
    check_same_job(SPEC, replace(SPEC, chips=4, steps=5000, learning_rate=1e-4))

    with pytest.raises(ConfigError, match=r"^seed=1: expected 0, with which this directory's job"):
        check_same_job(SPEC, replace(SPEC, seed=1))


def test_what_may_change_are_settings() -> None:
    assert {field.name for field in fields(JobSpec)} > MAY_CHANGE
