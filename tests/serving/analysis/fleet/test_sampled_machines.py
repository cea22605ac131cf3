import numpy as np
import pytest

from serving.analysis.fleet.sampled_machines import MeanError


def test_the_interval_is_students() -> None:
    found = MeanError.of([0.01, 0.02, 0.03, 0.04])

    assert found.mean == pytest.approx(0.025)
    # t of 3 degrees of freedom at 97.5 % is 3.1824; the deviation is 0.012910.
    assert found.half_width == pytest.approx(3.1824 * 0.012910 / 2, rel=1e-4)


def test_one_sample_has_no_interval() -> None:
    assert MeanError.of([0.5]) == MeanError(mean=0.5, half_width=None)


def test_nineteen_of_twenty_intervals_hold_the_mean() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(1_000):
        found = MeanError.of(rng.normal(0.3, 0.1, size=6).tolist())
        assert found.half_width is not None
        held += abs(found.mean - 0.3) <= found.half_width

    assert held / 1_000 == pytest.approx(0.95, abs=0.03)
