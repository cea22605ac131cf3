"""A plan in a minute is as good as all that fewer chips allow, and holds on seeds it never saw."""

import csv
import math
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from emulator.arrays import Float64s
from serving.analysis.plan.plan import plan
from serving.analysis.plan.size_check import Again
from serving.commands.plan import question_of
from serving.main import command_parser
from serving.simulator import SimulationWorkers
from tests.benchmarks.plan_exhaustive import (
    DATA,
    FRESH_SEEDS,
    QUESTIONS,
    TRACES,
    apart_by_chance,
    beyond_promise,
    fresh_checks,
    most_searched,
)

WORSE: Final = 1.05
APART: Final = 0.05


def rows() -> dict[str, dict[str, str]]:
    with DATA.open(newline="") as file:
        return {row["question"]: row for row in csv.DictReader(file)}


def most_chips(row: dict[str, str]) -> float:
    """Of a plan that what may keep the target with fewer, searched or not, does not beat."""
    return WORSE * (int(row["searched_to"]) + 1)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", rows())
def test_a_plan_in_a_minute_has_hardly_more_chips_than_the_best_there_is(name: str) -> None:
    for word in QUESTIONS[name]:
        if word.startswith(str(TRACES)) and not Path(word).exists():
            pytest.skip(f"needs {word} (public data; ULTRASERVE_TRACES says where it lies)")
    words = ["plan", *QUESTIONS[name], "--budget", "60s", "--processes", "2"]
    args = command_parser("plan").parse_args(words)
    args.words = words
    question = question_of(args)
    with SimulationWorkers(2) as workers:
        found = plan(question, workers=workers)
        assert found.choice.check.chips <= most_chips(rows()[name])
        fresh = fresh_checks(question, found, workers)
    assert all(check.meets for check in fresh)
    beyond = beyond_promise(found.choice.check, fresh)
    if question.demand.runs(found.choice.check.replicas, 2) == 1:
        assert not beyond, "of a trace one unit gets the same requests in each run"
        return
    for term in found.choice.check.terms:
        assert term.again is not None, f"{term.label}: no further run is promised"
        assert abs(beyond[term.name]) <= max(APART, apart_by_chance(term.again))


def again_of(logs: Float64s) -> Again:
    """Of these windows' logarithms."""
    spread, likely_s = float(np.std(logs, ddof=1)), math.exp(float(np.mean(logs)))
    return Again(
        requests=3_000,
        confidence=0.995,
        windows=len(logs),
        spread=spread,
        least_s=likely_s,
        likely_s=likely_s,
        most_s=likely_s,
    )


@pytest.mark.long
def test_a_bias_of_a_seventh_is_told_from_chance_where_none_is_in_nineteen_of_twenty() -> None:
    chance = np.random.default_rng(1)
    passed = dict.fromkeys((0.0, 0.15), 0)
    for bias in passed:
        for _ in range(2_000):
            judged, fresh = chance.normal(0.0, 0.1, 16), chance.normal(bias, 0.1, len(FRESH_SEEDS))
            apart = abs(float(fresh.mean() - judged.mean()))
            passed[bias] += apart <= apart_by_chance(again_of(judged))

    assert passed[0.0] >= 0.94 * 2_000
    assert passed[0.15] <= 0.1 * 2_000


@pytest.mark.parametrize(("part", "most"), [(0.0, 99), (0.05, 95)])
def test_a_search_has_what_a_plan_may_not_be_beaten_by(part: float, most: int) -> None:
    assert most_searched(100, part) == most
    assert (1 + part) * (most + 1) >= 100


def test_no_row_knows_a_better_plan_than_its_bar_allows() -> None:
    for row in rows().values():
        assert int(row["searched_to"]) < int(row["best_chips"]) <= int(row["plan_chips"])
        assert int(row["plan_chips"]) <= most_chips(row), row["question"]
