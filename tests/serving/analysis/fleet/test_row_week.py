"""A row's week: its sums are exact, requests are conserved, and its cap holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.analysis.fleet.fleet_account import FleetAccount
from serving.analysis.fleet.row_power import RowPower
from serving.analysis.fleet.row_week import pause_tokens
from tests.serving.analysis.day.days import HANDOVER, machine
from tests.serving.analysis.fleet.fleets import CHIP_FAILS, HOURS, row, week

POLICY = "fixed:1"
SUMMED = ("arrived", "served", "kept", "waiting", "tokens", "it_watts")


def power(machines: int, cap_watts: float | None = None) -> RowPower:
    return RowPower(
        machine=machine(),
        handover=HANDOVER,
        row=row(machines),
        pue=np.full(HOURS, 1.25),
        cap_watts=None if cap_watts is None else np.full(HOURS, cap_watts),
    )


@pytest.mark.parametrize("name", SUMMED)
def test_machines_that_are_alike_sum_exactly(name: str) -> None:
    one, seven = week(row(1), POLICY), week(row(7), POLICY)

    assert (7 * getattr(one, name) == getattr(seven, name)).all()


def test_a_building_divided_in_two_comes_to_the_same() -> None:
    whole = FleetAccount(name="whole", rows=(week(row(6), POLICY),))
    halves = FleetAccount(name="halves", rows=(week(row(3), POLICY), week(row(3), POLICY)))

    assert whole.meter_watts == pytest.approx(halves.meter_watts, rel=1e-12)
    for name in ("arrived", "served", "output_tokens", "machines", "chips"):
        assert getattr(whole, name) == getattr(halves, name)
    for name in ("attainment", "trained_tokens", "energy_mwh", "worst_5min_attainment", "goodput"):
        assert getattr(whole, name) == pytest.approx(getattr(halves, name), rel=1e-12)


def test_a_building_divided_in_two_has_the_same_failures() -> None:
    failures = (CHIP_FAILS,)
    whole = week(row(60), failures=failures)
    halves = [week(row(30), failures=failures, first_machine=first) for first in (0, 30)]

    assert whole.failures["chip"] == sum(each.failures["chip"] for each in halves) > 0
    assert (whole.duty.out == halves[0].duty.out + halves[1].duty.out).all()


@pytest.mark.parametrize("policy", ["never", "fixed:1", "demand"])
def test_requests_are_conserved_while_machines_come_and_go(policy: str) -> None:
    found = week(row(12, hot=1), policy, failures=(CHIP_FAILS,), peak_share=1.2)
    waiting = float(found.waiting[-1])

    assert len(set(found.duty.working.tolist())) > 1
    assert found.arrived.sum() == pytest.approx(found.served.sum() + waiting, rel=1e-9)


def test_a_backlog_is_divided_over_the_machines_that_are_there() -> None:
    found = week(row(12), "fixed:1", failures=(CHIP_FAILS,), peak_share=1.2)

    flow = np.diff(found.waiting) - (found.arrived - found.served)[1:]
    assert found.waiting.any()
    assert np.abs(flow).max() < 1e-6 * found.waiting.max()


def test_energy_is_the_rows_power_at_the_pue() -> None:
    found = week(row(2), pue=np.linspace(1.0, 1.5, HOURS))

    assert found.meter_watts.sum() == pytest.approx(
        sum(
            pue * found.it_watts[hour * 60 : (hour + 1) * 60].sum()
            for hour, pue in enumerate(np.linspace(1.0, 1.5, HOURS))
        )
    )


def test_a_spare_draws_what_an_idle_machine_does() -> None:
    two, with_spare = week(row(2)), week(row(3, hot=1))

    assert with_spare.it_watts - two.it_watts == pytest.approx(power(3).idle_it_watts)
    assert (with_spare.arrived == two.arrived).all()


def test_a_cap_pauses_jobs_before_machines_stop_serving() -> None:
    free = week(row(8), POLICY)
    walk = free.result.walk
    chip_watts = machine().chip_watts(walk) - power(8).job_watts(walk)
    serving = 8 * power(8).it_watts(chip_watts).max() * 1.25
    assert free.meter_watts.max() > serving

    found = week(row(8), POLICY, cap_watts=np.full(HOURS, serving))

    assert not found.duty.shed.any()
    assert found.running.min() == 0
    assert found.meter_watts.max() <= serving * (1 + 1e-9)
    assert (found.served == free.served).all()
    assert found.tokens.sum() < free.tokens.sum()


def test_a_cap_that_jobs_alone_exceed_pauses_some_of_them() -> None:
    free = week(row(8), POLICY)
    cap = 0.999 * free.meter_watts.max()

    found = week(row(8), POLICY, cap_watts=np.full(HOURS, cap))

    assert 0 < found.running.min() < 8
    assert not found.duty.shed.any()


def test_a_lower_cap_takes_machines_out_of_serving() -> None:
    three = 3.5 * power(8).most_it_watts * 1.25

    found = week(row(8), cap_watts=np.full(HOURS, three), peak_share=0.9)

    assert 3 <= found.duty.working.min() < 8
    assert (found.duty.working + found.duty.shed == 8).all()
    assert found.kept.sum() < week(row(8), peak_share=0.9).kept.sum()


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    caps=st.lists(st.floats(1.1, 9.0), min_size=HOURS, max_size=HOURS),
    policy=st.sampled_from(["never", "fixed:1", "fixed:3", "demand"]),
    share=st.floats(0.1, 1.5),
)
def test_no_cap_is_ever_exceeded(caps: list[float], policy: str, share: float) -> None:
    cap_watts = 1.25 * power(8).most_it_watts * np.array(caps)

    found = week(row(8), policy, cap_watts=cap_watts, peak_share=share, failures=(CHIP_FAILS,))

    assert (found.meter_watts <= np.repeat(cap_watts, 60) * (1 + 1e-9)).all()
    assert (found.running <= found.duty.working).all()


def test_a_cap_that_holds_no_machine_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"cap_mw=0\.001 of a row: expected at least .* in hour 0"
    ):
        week(row(8), cap_watts=np.full(HOURS, 1_000.0))


def test_a_pause_costs_a_save_and_a_start() -> None:
    found = week(row(4), POLICY)
    walk, trained = found.result.walk, machine().trained
    working = np.full(len(walk.demand.arrivals), 4)
    running = working.copy()
    running[200:260] = 1  # three jobs of three groups each, which train 30 tokens/s

    lost = pause_tokens(trained, walk, working, running)

    assert lost[200] == 3 * 30 * 10
    assert lost[260] == 3 * 30 * 20
    assert lost.sum() == lost[200] + lost[260]


def test_failures_cost_a_job_what_dalys_formula_says() -> None:
    found = week(row(4), POLICY, failures=(CHIP_FAILS,))

    # One of 144 chips fails every 6.9 h; a save takes 10 s, a restart 20 s: by Young's rule a
    # share of about sqrt(2 x 10 / 25,000) is lost to saves and work done again.
    lost = 1 - found.goodput_share
    assert lost == pytest.approx((2 * 10 / 25_000) ** 0.5 + 20 / 25_000, rel=0.05)
    account = FleetAccount(name="a", rows=(found,))
    assert account.goodput < found.goodput_share
    assert account.out_share > 0
