"""A policy that a user writes: ten lines of Python, and one line for what is wrong with them."""

from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from serving.policy.day_night.policy import decided
from serving.policy.day_night.policy_text import parse_policy
from tests.serving.policy.day_night.test_policies import DAY, observed

MINE = """
import math

def half_full(seen):
    load = max(seen.load_per_s, float(seen.history.requests_per_s[-1]))
    return math.ceil(load / (0.5 * seen.capacity_per_group_per_s))

def words(seen):
    return "two"

def all_and_more(seen):
    return 99

def failing(seen):
    return seen.no_such_figure
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return f"python:{path}"


def test_a_users_function_decides_within_the_bounds(mine: str) -> None:
    seen = observed(np.full(DAY, 12.0), groups_min=2)  # groups of 10/s

    assert parse_policy(f"{mine}:half_full").decide(seen).serving_groups == 3
    assert parse_policy(f"{mine}:all_and_more").decide(seen).serving_groups == 8
    idle = observed(np.zeros(DAY), groups_min=2)
    assert parse_policy(f"{mine}:half_full").decide(idle).serving_groups == 2


def test_the_example_of_the_guide_is_the_file_that_is_shipped_and_decides() -> None:
    root = Path(__file__).resolve().parents[4]
    example = root / "deploy/policies/half_full.py"
    guide = (root / "deploy/guides/recorded-day.md").read_text()
    policy = parse_policy(f"python:{example}:half_full")

    assert example.read_text() in guide
    rates = np.full(DAY, 12.0)
    rates[-12] = 31.0  # an hour ago; groups of 10/s
    assert policy.decide(observed(rates)).serving_groups == 7
    assert policy.decide(observed(rates[:-12])).serving_groups == 3
    assert policy.decide(observed(np.zeros(0), load_per_s=12.0)).serving_groups == 3


def test_its_text_makes_it_again(mine: str) -> None:
    policy = parse_policy(f"{mine}:half_full")

    assert str(policy) == f"{mine}:half_full"
    assert parse_policy(str(policy)) == policy
    assert policy.describe().startswith(f"{mine}:half_full: ")


def test_all_groups_of_a_running_server_serve_where_it_fails(mine: str) -> None:
    seen = observed(np.full(DAY, 12.0))
    failed = decided(parse_policy(f"{mine}:failing"), seen)

    assert failed.serving_groups == seen.groups
    assert "all serve" in failed.reason
    assert "AttributeError" in failed.reason


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("words", "expected a whole number of groups, not 'two'"),
        ("failing", "expected a function that does not raise (AttributeError: "),
    ],
)
def test_a_function_that_gives_no_number_is_refused(mine: str, function: str, words: str) -> None:
    policy = parse_policy(f"{mine}:{function}")

    with pytest.raises(ConfigError) as refused:
        policy.decide(observed(np.full(DAY, 12.0)))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_without_the_function_or_with_faults_is_refused(mine: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a function named missing in "):
        parse_policy(f"{mine}:missing")
    bad = tmp_path / "bad.py"
    bad.write_text("def broken(:\n")
    with pytest.raises(ConfigError, match=r"a Python file that runs \(SyntaxError: "):
        parse_policy(f"python:{bad}:broken")
