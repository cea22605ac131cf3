"""What a token takes of the engine's process, at 128 requests; `tests.benchmarks.token_path`."""

import pytest

from tests.benchmarks.token_path import GREEDY, in_this_process, token_budget

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_token_of_the_fast_engine_takes_a_third_of_the_default_one_s() -> None:
    budgets = {}
    for engine in ("default", "fast"):
        with in_this_process(1, engine) as llm:
            budgets[engine] = token_budget(llm, GREEDY)

    ours, theirs = budgets["fast"], budgets["default"]
    assert ours.tokens == theirs.tokens
    assert ours.whole_us < theirs.whole_us / 3
    # What is not the scheduler's own: the machine, its meters and the messages.
    assert ours.parts_us["schedule"] + ours.parts_us["update"] < ours.whole_us / 2
