import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.rate_limiter import RateBudget


def test_sixty_a_minute_are_one_a_second_once_the_minute_is_used() -> None:
    budget = RateBudget.full(60, now_s=100.0)

    budget.take(60, 100.0)

    assert budget.left(100.0) == 0
    assert budget.wait_s(1, 100.0) == pytest.approx(1.0)
    assert budget.wait_s(1, 101.0) == 0.0
    assert budget.full_in_s(101.0) == pytest.approx(59.0)


def test_what_was_not_used_is_given_back_and_never_more_than_the_limit() -> None:
    budget = RateBudget.full(100, now_s=0.0)

    budget.take(80, 0.0)
    budget.take(-50, 0.0)
    assert budget.left(0.0) == 70

    budget.take(-50, 0.0)
    assert budget.left(0.0) == 100


def test_a_debt_is_paid_by_time() -> None:
    budget = RateBudget.full(60, now_s=0.0)

    budget.take(90, 0.0)

    assert budget.left(0.0) == -30
    assert budget.wait_s(1, 0.0) == pytest.approx(31.0)


def test_more_than_a_minute_holds_never_fits() -> None:
    assert RateBudget.full(10, now_s=0.0).wait_s(11, 0.0) == math.inf


@given(
    limit=st.integers(1, 1_000),
    asks=st.lists(st.tuples(st.floats(0, 90), st.integers(1, 500)), max_size=60),
)
def test_no_window_takes_more_than_the_limit_and_what_fills_meanwhile(
    limit: int, asks: list[tuple[float, int]]
) -> None:
    budget, now_s = RateBudget.full(limit, now_s=0.0), 0.0
    taken: list[tuple[float, int]] = []
    for pause_s, amount in asks:
        now_s += pause_s
        if budget.wait_s(amount, now_s) == 0:
            budget.take(amount, now_s)
            taken.append((now_s, amount))

    for first, (start_s, _) in enumerate(taken):
        for last, (end_s, _) in enumerate(taken[first:], start=first):
            total = sum(amount for _, amount in taken[first : last + 1])
            assert total <= limit * (1 + (end_s - start_s) / 60) * (1 + 1e-9)


@given(limit=st.integers(1, 1_000), amount=st.integers(1, 1_000), used=st.integers(0, 2_000))
def test_what_it_says_to_wait_is_enough_and_no_more(limit: int, amount: int, used: int) -> None:
    budget = RateBudget.full(limit, now_s=0.0)
    budget.take(used, 0.0)
    wait_s = budget.wait_s(amount, 0.0)
    if math.isinf(wait_s) or wait_s < 0.01:
        return

    assert budget.wait_s(amount, 0.99 * wait_s) > 0
    assert budget.wait_s(amount, 1.000001 * wait_s) == 0
