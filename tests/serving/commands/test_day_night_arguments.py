"""The flags of day and night, and what they mean together."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from serving.commands.day_night_arguments import (
    add_day_night_arguments,
    day_night_settings,
    with_cost_model,
)
from serving.engine.deployment import resolve_deployment
from serving.policy.day_night.night_work import NightOrder
from serving.server.day_night.day_night_settings import ENVIRONMENT, DayNightSettings
from serving.settings import Settings

WEIGHTS = Path("/weights")


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_day_night_arguments(parser)
    parser.add_argument("--control-port", type=int, default=50051)
    return parser.parse_args(flags)


def read(*flags: str, served: Settings | None = None) -> DayNightSettings | None:
    return day_night_settings(parsed(*flags), served or Settings(), WEIGHTS)


def test_without_a_policy_chips_only_serve() -> None:
    assert read() is None


def test_a_schedule_by_hand(tmp_path: Path) -> None:
    served = Settings(chips=16, tp=2, model="qwen3-30b-a3b", first_chip=4)
    read_ = read(
        *("--schedule", "22:00-06:00@Europe/Berlin", "--day-length", "2m", "--drain-grace", "500"),
        *("--lend-chips", "8", "--train-dir", str(tmp_path), "--publish", "if-better"),
        *("--night-work", "training,batch"),
        served=served,
    )

    assert read_ is not None
    assert read_.policy == "schedule:22:00-06:00@Europe/Berlin"
    assert (read_.zone, read_.day_start) == ("Europe/Berlin", "now")
    assert (read_.day_length_s, read_.grace_s) == (120.0, 500.0)
    assert (read_.chips, read_.group_chips, read_.groups, read_.lend_groups) == (16, 2, 8, 4)
    assert (read_.publish, read_.group_requests_per_s) == ("if-better", None)
    assert read_.night_order is NightOrder.TRAINING_FIRST
    assert read_.training.directory == tmp_path
    assert read_.training.weights_dir == WEIGHTS
    assert (read_.training.model, read_.training.first_chip) == ("qwen3-30b-a3b", 4)


def test_half_of_the_groups_are_lent_unless_it_is_said() -> None:
    assert [
        made.lend_groups
        for chips in (2, 3, 4, 9)
        if (made := read("--day-night", "never", served=Settings(chips=chips)))
    ] == [1, 1, 2, 4]


def test_the_server_s_process_is_told_the_same(tmp_path: Path) -> None:
    made = read(
        *("--day-night", "demand", "--group-requests-per-s", "4", "--train-dir", str(tmp_path)),
        *("--train-corpus", str(tmp_path), "--train-learning-rate", "1e-4"),
    )

    assert made is not None
    told = made.to_environment()
    assert list(told) == [ENVIRONMENT]
    assert DayNightSettings.from_environment(told) == made
    assert DayNightSettings.from_environment({}) is None


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--day-night", "sometimes"], "policy=sometimes: expected never"),
        (["--day-night", "never", "--slo", "fast"], "slo=fast: expected ttft=500ms"),
        (["--input", "100"], "input=100: expected --day-night or --schedule with it"),
        (["--day-night", "never", "--schedule", "22:00-06:00"], "one policy, not never"),
        (["--schedule", "22:00"], "expected"),
        (["--schedule", "22:00-06:00@Nowhere"], "time zone=Nowhere"),
        (["--publish", "if-better"], "--day-night or --schedule with it"),
        (["--day-length", "60s"], "--day-night or --schedule with it"),
        (["--night-work", "batch"], "night_work=batch: expected --day-night or --schedule with it"),
        (["--day-night", "never", "--control-port", "0"], "control_port=0: expected a port"),
        (["--day-night", "never", "--day-length", "0"], "day_length=0s: expected at least 1"),
        (["--day-night", "never", "--day-length", "long"], "day_length=long: expected a time"),
        (["--day-night", "never", "--day-start", "noon"], "day_start=noon: expected HH:MM"),
        (["--day-night", "never", "--group-chips", "4"], "at least 2 groups on 4 chips"),
        (["--day-night", "never", "--group-chips", "0"], "group_chips=0: expected whole ranks"),
        (["--day-night", "never", "--lend-chips", "4"], "lend_chips=4: expected 1 to 3 chips"),
        (["--day-night", "never", "--lend-chips", "0"], "lend_chips=0: expected whole groups"),
        (["--day-night", "never", "--drain-grace=-1"], "drain_grace=-1s: expected at least 0s"),
        (["--day-night", "never", "--group-requests-per-s", "0"], "expected a number above 0"),
        (["--day-night", "never", "--train-learning-rate", "nan"], "expected a number above 0"),
        (["--day-night", "never", "--train-corpus", "/none"], "train_corpus=/none: expected a fol"),
        (["--day-night", "never", "--train-dir", "/dev/null/x"], "train_dir=/dev/null/x: expected"),
    ],
)
def test_what_cannot_be_meant_is_one_line(flags: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(*flags)

    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_groups_are_whole_ranks() -> None:
    with pytest.raises(ConfigError, match="group_chips=3: expected whole ranks of 2 chips"):
        read("--day-night", "never", "--group-chips", "3", served=Settings(chips=8, tp=2))


def with_costs(tmp_path: Path, *flags: str, **served: Any) -> DayNightSettings:
    settings = Settings(**({"chips": 16, "model": "qwen3-30b-a3b"} | served))
    given = parsed(*flags, "--train-dir", str(tmp_path))
    made = day_night_settings(given, settings, SMALL_MOE_DIR)
    assert made is not None
    deployment = resolve_deployment(settings, SMALL_MOE_DIR)
    return with_cost_model(made, given, deployment.machine(0.9), seats=256, utilization=0.9)


@pytest.mark.long
def test_the_cost_model_says_what_a_group_serves_unless_somebody_does(tmp_path: Path) -> None:
    said = with_costs(tmp_path, "--day-night", "demand", "--group-requests-per-s", "3")
    assert (said.group_requests_per_s, said.group_requests_source) == (3.0, "as it was said")
    assert said.reading_s > 0
    asked = with_costs(tmp_path, "--day-night", "demand")
    assert asked.group_requests_per_s is not None
    assert asked.group_requests_source.startswith("from the cost model, 1,024 + 1,024 tokens")
    assert "assumed: queues leave 50%" in asked.group_requests_source
    shorter = with_costs(tmp_path, "--day-night", "demand", "--input", "100", "--output", "20")
    assert shorter.group_requests_per_s is not None
    assert shorter.group_requests_per_s > asked.group_requests_per_s


def test_a_target_that_is_never_kept_is_a_trouble_of_demand_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--group-requests-per-s with it"):
        with_costs(tmp_path, "--day-night", "demand", "--slo", "tpot=1us")
    schedule = with_costs(tmp_path, "--schedule", "22:00-06:00", "--slo", "tpot=1us")
    assert (schedule.group_requests_per_s, schedule.group_requests_source) == (None, "")


@pytest.mark.long
def test_a_group_is_the_fewest_chips_that_can_train(tmp_path: Path) -> None:
    made = with_costs(tmp_path, "--day-night", "never")
    assert (made.group_chips, made.groups, made.lend_groups) == (5, 3, 1)
    asked = with_costs(tmp_path, "--day-night", "never", "--group-chips", "8")
    assert (asked.group_chips, asked.groups) == (8, 2)
    with pytest.raises(ConfigError, match="group_chips=4: expected at least 5, into which"):
        with_costs(tmp_path, "--day-night", "never", "--group-chips", "4")
    with pytest.raises(ConfigError, match="chips=8: expected more: a training state of qwen3"):
        with_costs(tmp_path, "--day-night", "never", chips=8)
    whole_ranks = with_costs(tmp_path, "--day-night", "never", tp=2)
    assert whole_ranks.group_chips == 6
