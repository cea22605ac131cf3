import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.power.energy_meter import EnergyMeter

S = 1_000_000_000


def facility(chip_watts: float) -> float:
    """A host of 100 W, and a quarter for cooling."""
    return (chip_watts + 100.0) * 1.25


def test_watts_times_seconds_by_hand() -> None:
    meter = EnergyMeter(facility)
    assert (meter.chip_joules, meter.facility_joules) == (0.0, 0.0)

    meter.add(duration_ns=2 * S, chip_watts=300.0)
    assert (meter.chip_joules, meter.facility_joules) == (600.0, 1_000.0)

    added = meter.add(duration_ns=S // 2, chip_watts=1_000.0)
    assert added == (500.0, 687.5)
    assert (meter.chip_joules, meter.facility_joules) == (1_100.0, 1_687.5)


def test_an_interval_of_no_length_costs_nothing_and_one_without_chips_still_has_hosts() -> None:
    meter = EnergyMeter(facility)

    meter.add(duration_ns=0, chip_watts=900.0)
    assert (meter.chip_joules, meter.facility_joules) == (0.0, 0.0)

    meter.add(duration_ns=S, chip_watts=0.0)
    assert (meter.chip_joules, meter.facility_joules) == (0.0, 125.0)


@pytest.mark.parametrize(("duration_ns", "chip_watts"), [(-1, 1.0), (1, -1.0)])
def test_neither_time_nor_power_is_negative(duration_ns: int, chip_watts: float) -> None:
    with pytest.raises(AssertionError):
        EnergyMeter(facility).add(duration_ns=duration_ns, chip_watts=chip_watts)


intervals = st.lists(st.tuples(st.integers(0, 10**12), st.floats(0, 1e6)), max_size=20)


@given(intervals)
def test_totals_are_the_sums_of_their_intervals_and_never_fall(
    added: list[tuple[int, float]],
) -> None:
    meter = EnergyMeter(facility)
    chip, total = 0.0, 0.0
    for duration_ns, watts in added:
        meter.add(duration_ns=duration_ns, chip_watts=watts)
        assert meter.chip_joules >= chip
        assert meter.facility_joules >= total
        chip, total = meter.chip_joules, meter.facility_joules

    assert chip == pytest.approx(sum(ns / S * watts for ns, watts in added))
    assert total == pytest.approx(sum(ns / S * facility(watts) for ns, watts in added))


@given(st.integers(0, 10**12), st.floats(0, 1e6), st.floats(0, 1))
def test_an_interval_may_be_counted_in_two_parts(ns: int, watts: float, share: float) -> None:
    whole, parts = EnergyMeter(facility), EnergyMeter(facility)
    first_ns = int(ns * share)

    whole.add(duration_ns=ns, chip_watts=watts)
    parts.add(duration_ns=first_ns, chip_watts=watts)
    parts.add(duration_ns=ns - first_ns, chip_watts=watts)

    assert parts.chip_joules == pytest.approx(whole.chip_joules)
    assert parts.facility_joules == pytest.approx(whole.facility_joules)


def test_joules_beyond_intervals_bring_what_the_facility_adds_to_them_and_no_host_again() -> None:
    meter = EnergyMeter(facility)
    meter.add(duration_ns=S, chip_watts=300.0)
    meter.add_beyond(80.0)

    assert meter.chip_joules == 380.0
    assert meter.facility_joules == pytest.approx(500.0 + 1.25 * 80.0)
