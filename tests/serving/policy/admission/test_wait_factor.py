"""Ratios of waits to what was predicted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.wait import FACTOR_MAX, FACTOR_MIN, WaitFactor

WAITS = st.lists(st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1e3)), max_size=300)


def fed(ratios: np.ndarray, predicted_s: float = 0.8) -> WaitFactor:
    factor = WaitFactor(1.0)
    for ratio in ratios:
        factor.add(predicted_s=predicted_s, waited_s=predicted_s * float(ratio), now_s=0.0)
    return factor


def test_the_cost_model_is_right_until_shown_otherwise() -> None:
    assert fed(np.zeros(0)).value(0.0) == 1.0


def test_one_odd_wait_changes_nothing_and_two_do() -> None:
    assert fed(np.array([9.0])).value(0.0) == 1.0
    assert fed(np.array([9.0, 2.0])).value(0.0) == pytest.approx(2.0)


def test_what_was_measured_long_ago_is_forgotten() -> None:
    ratios = np.concatenate((np.full(50, 3.0), np.full(200, 0.5)))

    assert fed(ratios).value(0.0) == pytest.approx(0.5)


def test_while_nothing_is_measured_it_goes_back_to_one() -> None:
    factor = fed(np.full(20, 4.0))

    assert factor.value(0.0) == pytest.approx(4.0)
    assert 1.0 < factor.value(120.0) < 1.5
    assert factor.value(1e4) == pytest.approx(1.0)


def test_short_waits_say_nothing_about_those_near_the_target() -> None:
    """What is fixed in them, such as a step under way, is most of them."""
    assert fed(np.full(200, 5.0), predicted_s=0.05).value(0.0) == 1.0
    assert fed(np.full(200, 0.1), predicted_s=0.05).value(0.0) == 1.0


def test_a_short_prediction_of_a_long_wait_counts_in_part() -> None:
    assert fed(np.full(200, 20.0), predicted_s=0.05).value(0.0) == pytest.approx(2.0)


@given(WAITS)
def test_it_stays_within_its_bounds(waits: list[tuple[float, float]]) -> None:
    factor = WaitFactor(1.0)
    for now_s, (predicted_s, waited_s) in enumerate(waits):
        factor.add(predicted_s=predicted_s, waited_s=waited_s, now_s=now_s)

        assert FACTOR_MIN <= factor.value(now_s) <= FACTOR_MAX


@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_it_covers_99_percent_of_what_comes_next(spread: float) -> None:
    rng = np.random.default_rng(3)

    def draw(count: int) -> np.ndarray:
        return 2.0 * np.exp(spread * rng.standard_normal(count))

    covered = [np.mean(draw(200) <= fed(draw(300)).value(0.0)) for _ in range(100)]

    assert np.mean(covered) >= 0.985
