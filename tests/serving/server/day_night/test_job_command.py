"""The job's command is one that `ultraserve train` reads, and the same job on any night."""

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from serving.commands import train
from serving.server.day_night.job_process import job_commands
from serving.server.training.job_spec import JobSpec, TrainingPace, check_same_job
from tests.serving.server.day_night.lending_engine import a_settings


def spec_of(command: list[str]) -> JobSpec:
    """What `ultraserve train` makes of it."""
    program, words = command[:5], command[5:]
    assert program == [sys.executable, "-P", "-m", "serving.main", "train"]
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    args = parser.parse_args(["train", *words])
    return JobSpec(**{each.name: getattr(args, each.name) for each in fields(JobSpec)})


def test_a_job_on_two_chips_by_hand(tmp_path: Path) -> None:
    made = a_settings(tmp_path)
    training = replace(
        made.training,
        first_chip=8,
        model="qwen3-30b-a3b",
        corpus_dir=tmp_path,
        learning_rate=1e-4,
        assumptions=("hbm=nki", "hbm_bandwidth=2x"),
        pace=TrainingPace.FAST_FORWARD,
        calibration="roofline",
        lnc=1,
    )
    spec = spec_of(job_commands(replace(made, training=training))((2, 3), 10.0))

    assert (spec.chips, spec.first_chip, spec.dilation) == (2, 10, 10.0)
    assert tuple(spec.assumptions) == ("hbm=nki", "hbm_bandwidth=2x")
    assert (spec.pace, spec.calibration, spec.lnc) == (TrainingPace.FAST_FORWARD, "roofline", 1)
    assert (spec.weights, spec.corpus) == ("/weights", str(tmp_path))
    assert (spec.model, spec.learning_rate, spec.schedule) == ("qwen3-30b-a3b", 1e-4, "constant")


@pytest.mark.parametrize("lend_groups", [1, 16, 17, 143])
def test_it_is_the_same_job_on_any_number_of_the_chips(tmp_path: Path, lend_groups: int) -> None:
    commands = job_commands(a_settings(tmp_path, chips=144, lend_groups=lend_groups))
    most = spec_of(commands(range(1, lend_groups + 1), 10.0))
    fewest = spec_of(commands((7,), 0.0))

    check_same_job(most, fewest)
    assert most.sequences >= lend_groups
    assert fewest.dilation is None
