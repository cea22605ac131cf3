"""What is said of a run, by hand for three requests, and which of them kept a level."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.traffic.serving_run import Ending, ServingRun
from tests.serving.traffic.kept_levels import attainment, meets

NAN = float("nan")


def run(**changed: Any) -> ServingRun:
    """Three requests; 0 gets tokens at 2, 3 and 5 s, 1 at 3 and 5 s, and 2, of one token, at 5 s.

    They arrive at 0, 1 and 2 s. The step before the first token gives none.
    """
    given = {
        "traffic": Traffic(
            arrival_s=np.array([0.0, 1.0, 2.0]),
            prompt_tokens=np.array([9, 9, 9], dtype=np.int64),
            output_tokens=np.array([3, 2, 1], dtype=np.int64),
        ),
        "ending": Ending.SERVED,
        "arrival_s": np.array([0.0, 1.0, 2.0]),
        "first_token_s": np.array([2.0, 3.0, 5.0]),
        "last_token_s": np.array([5.0, 5.0, 5.0]),
        "token_request": np.array([0, 1, 0, 2, 0, 1], dtype=np.int64),
        "step_end_s": np.array([1.0, 2.0, 3.0, 5.0]),
        "step_tokens": np.array([0, 1, 2, 3], dtype=np.int64),
        "busy_s": 4.5,
        "joules": 60.0,
        "preemptions": 0,
        "kv_blocks_used_max": 3,
        "empty_rank_steps": 0,
        "failed": np.zeros(3, dtype=np.bool_),
    }
    return ServingRun(**(given | changed))


def stopped() -> ServingRun:
    """The same, stopped after the step that ends at 3 s."""
    return run(
        ending=Ending.TIME_UP,
        first_token_s=np.array([2.0, 3.0, NAN]),
        last_token_s=np.array([NAN, NAN, NAN]),
        token_request=np.array([0, 1, 0], dtype=np.int64),
        step_end_s=np.array([1.0, 2.0, 3.0]),
        step_tokens=np.array([0, 1, 2], dtype=np.int64),
    )


def test_each_request_has_its_ttft_and_tpot() -> None:
    assert run().ttft_s.tolist() == [2.0, 2.0, 3.0]
    assert run().tpot_s[:2].tolist() == [1.5, 2.0]
    assert math.isnan(run().tpot_s[2])


def bound(name: str, limit_s: float, *, percent: float = 99.0) -> Bound:
    return Bound(measure=f"{name}_ms", limit=limit_s * 1e3, percentile=percent)


def test_token_gaps_are_those_of_each_request() -> None:
    assert run().token_s.tolist() == [2.0, 3.0, 3.0, 5.0, 5.0, 5.0]
    assert run().itl_s().tolist() == [1.0, 2.0, 2.0]


def test_totals_are_over_the_whole_run() -> None:
    assert (run().steps, run().tokens, run().emulated_s) == (4, 6, 5.0)
    assert run().tokens_per_s == pytest.approx(6 / 5)
    assert run().joules_per_token == 10.0


@pytest.mark.parametrize(
    ("name", "limit_s", "share"),
    [
        ("ttft", 2.0, 2 / 3),
        ("ttft", 1.9, 0.0),
        ("tpot", 1.5, 2 / 3),  # the reply of one token has no gap to be slow in
        ("tpot", 1.4, 1 / 3),
        ("ttft", 3.0, 1.0),
    ],
)
def test_a_request_meets_a_bound_when_its_time_does(
    name: str, limit_s: float, share: float
) -> None:
    assert attainment(run(), bound(name, limit_s)) == pytest.approx(share)
    assert meets(run(), bound(name, limit_s, percent=50)) is (share >= 0.5)


def test_of_a_stopped_run_a_share_is_the_most_that_it_could_have_come_to() -> None:
    # At 3 s request 2 has waited 1 s; request 0 has 1 s behind it of the 2 * tpot it may take.
    assert attainment(stopped(), bound("ttft", 2.0)) == 1.0
    assert attainment(stopped(), bound("ttft", 0.9)) == 0.0
    assert attainment(stopped(), bound("tpot", 0.5)) == 1.0
    assert attainment(stopped(), bound("tpot", 0.4)) == pytest.approx(2 / 3)


def test_a_stopped_run_says_no_where_it_is_certain_and_nothing_where_it_is_not() -> None:
    assert meets(stopped(), bound("ttft", 0.9)) is False
    assert meets(stopped(), bound("ttft", 9.0)) is None


def test_a_stopped_run_has_the_gaps_it_saw() -> None:
    assert stopped().itl_s().tolist() == [1.0]


@given(
    ttft_ms=st.lists(st.integers(1, 50), min_size=1, max_size=300),
    limit_ms=st.integers(1, 50),
    percent=st.integers(1, 99),
)
def test_a_percentile_within_a_limit_and_that_share_within_it_are_the_same(
    ttft_ms: list[int], limit_ms: int, percent: int
) -> None:
    at_s = np.array(ttft_ms) / 1e3
    order = np.argsort(at_s, kind="stable")
    served = run(
        traffic=Traffic(
            arrival_s=np.zeros(len(at_s)),
            prompt_tokens=np.ones(len(at_s), dtype=np.int64),
            output_tokens=np.ones(len(at_s), dtype=np.int64),
        ),
        arrival_s=np.zeros(len(at_s)),
        failed=np.zeros(len(at_s), dtype=np.bool_),
        first_token_s=at_s,
        last_token_s=at_s,
        token_request=order,
        step_end_s=at_s[order],
        step_tokens=np.ones(len(at_s), dtype=np.int64),
    )
    level = Bound(measure="ttft_ms", limit=limit_ms, percentile=percent)

    assert meets(served, level) is (percentile(served.ttft_s, percent) <= limit_ms / 1e3)


@pytest.mark.parametrize(
    "changed",
    [
        {"first_token_s": np.zeros(2)},
        {"step_tokens": np.array([0, 1, 2], dtype=np.int64)},
        {"step_tokens": np.array([0, 1, 2, 2], dtype=np.int64)},
        {"ending": Ending.HOPELESS},
        {"last_token_s": np.array([5.0, NAN, 5.0])},
    ],
)
def test_a_run_that_contradicts_itself_is_not_made(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each case breaks a rule of its own
        run(**changed)
