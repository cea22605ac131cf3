from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.draw import full_rate_watts
from emulator.power.power_state import BUSY_ENGINES, NAMED_STATES, power_state
from emulator.power.system_power import SystemPower
from emulator.specs.rack_power import Season
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from tests.emulator.power.made_up_rack import a_figure, over_budget, round_system

POWER = SystemPower(round_system())
TIGHT = SystemPower(round_system(provisioned_watts=144 * 1_225))  # holds 800 W a chip


def test_a_chip_busy_with_one_engine_draws_for_it_alone() -> None:
    state = power_state(POWER, {"dma": 0.5}, name="half", chips=144)

    each = 200 + full_rate_watts(POWER.system.chip)["dma"] / 2
    assert (state.watts_per_chip, state.slow_factor) == (pytest.approx(each), 1.0)
    assert state.facility.total_watts == pytest.approx(
        POWER.facility_watts(144 * each, chips=144).total_watts
    )


def test_a_tight_rack_holds_its_chips_and_they_take_longer() -> None:
    state = power_state(TIGHT, NAMED_STATES["full"], name="full", chips=144)

    assert state.wanted_watts_per_chip > 800
    assert state.watts_per_chip == pytest.approx(800)
    assert state.slow_factor == pytest.approx((state.wanted_watts_per_chip - 200) / 600)
    assert state.facility.it_watts == pytest.approx(TIGHT.system.provisioned_watts.value)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_no_named_state_of_a_catalog_system_is_over_its_racks_budget(
    system: SystemSpec,
) -> None:
    power = SystemPower(system)
    drawn = [
        power_state(power, busy, name=name, chips=system.chips.count).facility
        for name, busy in NAMED_STATES.items()
    ]

    assert not any(over_budget(facility) for facility in drawn)
    totals = [facility.total_watts for facility in drawn]
    assert totals == sorted(totals)  # idle, decode, prefill, full


# four formats and "tensor" itself are one engine's time
busy_shares = st.fixed_dictionaries(
    {},
    optional={
        engine: st.floats(0, 0.2 if engine.startswith("tensor") else 1) for engine in BUSY_ENGINES
    },
)


@given(busy_shares, st.sampled_from(Season))
def test_the_work_above_idle_is_the_same_held_or_not(
    busy: dict[str, float], season: Season
) -> None:
    state = power_state(TIGHT, busy, name="any", chips=4, season=season)

    assert state.watts_per_chip <= 800 * (1 + 1e-9)
    assert (state.watts_per_chip - 200) * state.slow_factor == pytest.approx(
        state.wanted_watts_per_chip - 200
    )
    assert not over_budget(state.facility)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="busy=dsp: expected one of tensor"):
        power_state(POWER, {"dsp": 1}, name="", chips=1)
    with pytest.raises(ConfigError, match=r"busy dma=1\.5: expected 0 to 1"):
        power_state(POWER, {"dma": 1.5}, name="", chips=1)
    with pytest.raises(ConfigError, match=r"busy tensor=1\.5: expected at most 1 over all formats"):
        power_state(POWER, {"tensor_bf16": 0.75, "tensor_fp8": 0.75}, name="", chips=1)
    with pytest.raises(ConfigError, match="chips=145"):
        power_state(POWER, {}, name="", chips=145)
    stiff = replace(POWER.system.chip, idle_watts=a_figure(1_000))
    with pytest.raises(ConfigError, match="cap_watts=1000"):
        power_state(SystemPower(replace(POWER.system, chip=stiff)), {}, name="", chips=1)
