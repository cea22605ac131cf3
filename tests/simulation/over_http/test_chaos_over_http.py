"""A server of many chips under load, over HTTP, that is struck by everything that can happen.

Nothing that was accepted is lost, every text is the one that a quiet server of one chip gives, and
the books of clients, server, machine and processes close. README.md has figures.
"""

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.e2e.server_process import ULTRASERVE, started
from tests.simulation.over_http.clients import Clients, answers_of
from tests.simulation.over_http.question import Answer, Question, make_questions
from tests.simulation.over_http.report import report_lines
from tests.simulation.over_http.served_machine import (
    Size,
    right_answers_arguments,
    served_machine,
)
from tests.simulation.over_http.strike import FULL, SMALL, Intensity, Means, plan_strikes
from tests.simulation.over_http.trouble import Trouble

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SMALL_SIZE = Size(chips=6, spares=2, group_chips=2, clients=12)
FULL_SIZE = Size(chips=140, spares=4, group_chips=4, clients=160)

FULL_BYTES = 16e9
"""144 chips at 75 MB each, the server, a training job, and what other programs have."""


@pytest.fixture(scope="module")
def questions() -> tuple[Question, ...]:
    return make_questions(1)


@pytest.fixture(scope="module")
def expected(questions: tuple[Question, ...]) -> dict[str, Answer]:
    with started(ULTRASERVE, *right_answers_arguments()) as server:
        server.wait_ready()
        return asyncio.run(answers_of(server.url, questions))


def run(
    size: Size,
    intensity: Intensity,
    seed: int,
    questions: tuple[Question, ...],
    expected: dict[str, Answer],
    scratch: Path,
) -> Trouble:
    """The whole run; what it comes to is printed."""
    with served_machine(size, scratch) as machine:
        calm = asyncio.run(answers_of(machine.url, questions))
        assert calm == expected, "text depends on the partition"
        clients = Clients(machine.url, questions, expected, count=size.clients, seed=seed)
        trouble = Trouble(machine, clients, calm=len(calm))
        try:
            with clients:
                trouble.go_through(plan_strikes(seed, intensity))
        finally:
            (scratch / "server.log").write_text(machine.server.log())
        print("\n".join(report_lines(size, seed, trouble.figures, clients.tally, machine)))
    return trouble


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_six_chips_and_two_spares_lose_nothing(
    seed: int, questions: tuple[Question, ...], expected: dict[str, Answer], tmp_path: Path
) -> None:
    trouble = run(SMALL_SIZE, SMALL, seed, questions, expected, tmp_path)

    assert trouble.figures.moved_requests > 0
    assert trouble.figures.struck[Means.LOSE_NODE] == 1


def has_memory() -> bool:
    return bool(psutil.virtual_memory().total > FULL_BYTES)


@pytest.mark.hours
@pytest.mark.timeout(10_800)
@pytest.mark.skipif(not has_memory(), reason=f"the host has less than {FULL_BYTES / 1e9:g} GB")
def test_a_hundred_and_forty_chips_and_four_spares_lose_nothing(
    questions: tuple[Question, ...], expected: dict[str, Answer], tmp_path: Path
) -> None:
    trouble = run(FULL_SIZE, FULL, 1, questions, expected, tmp_path)

    assert trouble.figures.faults >= 200
    assert trouble.figures.moved_requests > 0
    assert trouble.figures.struck[Means.LOSE_NODE] >= 1
    assert trouble.figures.struck[Means.HAND_OVER] >= 1
    assert trouble.figures.killed_inside >= 1
