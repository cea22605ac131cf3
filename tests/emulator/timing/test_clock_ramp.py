from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.timing.clock_ramp import ramp_loss_ns

ENGINE = TRAINIUM3.matrix  # from half the rate to all of it in 3 us


def test_a_long_burst_loses_a_quarter_of_the_ramp_by_hand() -> None:
    # the ramp does 0.75 x 3,000 ns of work, so 2,250; anything longer has lost 750
    assert ramp_loss_ns(ENGINE, np.array([2_250.0, 1e6])).tolist() == pytest.approx([750, 750])


def test_a_burst_so_short_that_the_clock_stays_at_half_lasts_twice_as_long() -> None:
    assert ramp_loss_ns(ENGINE, np.array([0.0, 1.0])).tolist() == pytest.approx([0, 1], abs=1e-3)


@given(st.floats(0.1, 5_000))
def test_the_loss_equals_running_the_clock_step_by_step(burst_ns: float) -> None:
    done, elapsed_ns, tick_ns = 0.0, 0.0, burst_ns / 5_000
    while done < burst_ns:
        rate = 0.5 + 0.5 * min(elapsed_ns / 3_000, 1.0)
        done += rate * tick_ns
        elapsed_ns += tick_ns

    loss_ns = float(ramp_loss_ns(ENGINE, np.array(burst_ns)))

    assert burst_ns + loss_ns == pytest.approx(elapsed_ns, rel=2e-3)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_work_never_takes_less_time(one: float, other: float) -> None:
    less, more = np.sort(np.array([one, other]))

    assert less + ramp_loss_ns(ENGINE, less) <= more + ramp_loss_ns(ENGINE, more) + 1e-6


def test_an_engine_without_a_ramp_loses_nothing() -> None:
    at_once = replace(ENGINE, ramp_ns=replace(ENGINE.ramp_ns, value=0))
    at_full_rate = replace(ENGINE, ramp_share=replace(ENGINE.ramp_share, value=1))

    for engine in (at_once, at_full_rate):
        assert ramp_loss_ns(engine, np.array([10.0])).tolist() == [0]
