import math

import numpy as np
import pytest

from serving.admission.wait_errors import WaitErrors


def fed(errors_s: np.ndarray, late: bool = False) -> WaitErrors:
    errors = WaitErrors()
    for error_s in errors_s:
        errors.add(predicted_s=1.0, waited_s=1.0 + float(error_s), is_late=late)
    return errors


def test_too_few_errors_tell_nothing() -> None:
    assert fed(np.zeros(98)).margin_s == math.inf
    assert fed(np.zeros(99)).margin_s == 0


def test_the_margin_is_the_hundredth_part_from_above() -> None:
    assert fed(np.arange(1_000) / 1_000).margin_s == pytest.approx(0.990)


def test_waits_that_were_shorter_give_nothing() -> None:
    assert fed(np.full(200, -0.5)).margin_s == 0


def test_old_errors_are_forgotten() -> None:
    assert fed(np.concatenate((np.full(500, 9.0), np.zeros(2_000)))).margin_s == 0


def test_a_wait_that_was_too_long_asks_for_the_worst_error_until_others_were_in_time() -> None:
    errors = fed(np.concatenate(([2.0], np.full(500, 0.1))))
    assert errors.margin_s == pytest.approx(0.1)

    errors.add(predicted_s=1.0, waited_s=1.1, is_late=True)
    assert errors.margin_s == pytest.approx(2.0)

    for _ in range(120):
        errors.add(predicted_s=1.0, waited_s=1.1, is_late=False)
    assert errors.margin_s == pytest.approx(0.1)


def test_the_margin_is_that_of_the_newest_errors_sorted_anew_each_time() -> None:
    rng = np.random.default_rng(11)
    drawn_s = rng.normal(0.0, 1.0, 2_500).round(1)  # many are equal
    errors = WaitErrors()
    for count, error_s in enumerate(drawn_s, start=1):
        errors.add(predicted_s=0.0, waited_s=float(error_s), is_late=False)
        kept = np.sort(drawn_s[max(0, count - 2_000) : count])
        if len(kept) >= 99:
            place = math.ceil(0.99 * (len(kept) + 1))
            assert errors.margin_s == max(0.0, kept[min(len(kept), place) - 1])


@pytest.mark.parametrize("shape", ["normal", "exponential", "heavy"])
def test_the_margin_covers_99_percent_of_what_comes_next(shape: str) -> None:
    rng = np.random.default_rng(7)

    def draw(count: int) -> np.ndarray:
        if shape == "normal":
            return rng.normal(0.0, 1.0, count)
        return rng.exponential(1.0, count) if shape == "exponential" else rng.pareto(1.5, count)

    covered = np.mean([np.mean(draw(200) <= fed(draw(1_000)).margin_s) for _ in range(100)])

    assert covered == pytest.approx(0.99, abs=0.003)
