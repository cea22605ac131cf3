import numpy as np
import pytest

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.make_pacer import asked, make_pacer
from loadgen.arrivals.schedule import Schedule
from loadgen.measures.arrivals_kept import arrivals_kept

S = 1_000_000_000


def test_one_session_every_two_wall_seconds_is_two_per_second_of_a_clock_four_times_slower() -> (
    None
):
    kept = arrivals_kept(np.arange(200) * 2 * S, wall_per_s=4.0)

    assert kept.rate_per_s == pytest.approx(2.0)
    assert (kept.gap_cv, kept.bins) == (0.0, 20)
    assert kept.dispersion == pytest.approx(0.0, abs=0.02)


def test_a_schedule_that_is_kept_to_the_nanosecond_measures_as_it_was_asked() -> None:
    spec = ArrivalSpec(rate="sine:40,20,30s", gaps="gamma", burstiness=0.5)
    pacer = make_pacer(spec, sessions=2_000, recorded_ns=None, seed=7)
    assert isinstance(pacer, Schedule)
    wanted = asked(spec, pacer, time="emulated")

    kept = arrivals_kept(pacer.due_ns * 16, wall_per_s=16.0)

    assert kept.rate_per_s == pytest.approx(wanted.rate_per_s)
    assert kept.gap_cv == pytest.approx(wanted.gap_cv)
    assert kept.dispersion == pytest.approx(wanted.dispersion)


def test_nothing_sent_is_no_figure() -> None:
    kept = arrivals_kept(np.zeros(0, dtype=np.int64), wall_per_s=1.0)

    assert (kept.rate_per_s, kept.gap_cv, kept.dispersion, kept.bins) == (None, None, None, 0)
