from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.draw import full_rate_watts, throttle_factor, wanted_watts
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import chip_by_name
from emulator.specs.figure import Figure

TRN3 = chip_by_name("trainium3")
H100 = chip_by_name("h100")
H200 = chip_by_name("h200")
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "collectives")
IDLE = {name: np.zeros(1) for name in ENGINES}

shares = st.fixed_dictionaries(
    {name: st.floats(0, 1).map(lambda share: np.array([share])) for name in ENGINES}
)


def busy(**share: float) -> dict[str, np.ndarray]:
    return {**IDLE, **{name: np.array([value]) for name, value in share.items()}}


def chip_watts(chip: ChipSpec, shares: dict[str, np.ndarray]) -> np.ndarray:
    """What a chip draws that is held to its budget."""
    return np.minimum(wanted_watts(chip, shares), chip.budget_watts.value)


def test_a_chip_that_does_nothing_draws_its_floor() -> None:
    assert chip_watts(TRN3, IDLE).tolist() == [200]


@pytest.mark.parametrize(
    ("engine", "watts"),
    [
        ("tensor_bf16", 629.1456e12 * 0.6e-12 * 0.66),
        ("tensor_fp8", 4 * 629.1456e12 * 0.3e-12 * 0.66),
        ("tensor_fp4", 4 * 629.1456e12 * 0.3e-12 * 0.66),  # it multiplies FP4 as FP8
        ("tensor", 4 * 629.1456e12 * 0.3e-12 * 0.66),  # the hungriest format
        ("vector", 9.6e12 * 2 * 0.6 * (4.6 / 1.5) * 1e-12 * 0.66),
        ("dma", 4.224e12 * 8 * 6e-12),
        ("collectives", (512 + 512 + 128) * 1e9 * 8 * 2e-12),
    ],
)
def test_an_engine_at_full_rate_adds_its_rate_times_its_joules(engine: str, watts: float) -> None:
    assert full_rate_watts(TRN3)[engine] == pytest.approx(watts, rel=1e-6)
    assert chip_watts(TRN3, busy(**{engine: 1.0}))[0] == pytest.approx(200 + watts, rel=1e-6)


def test_watts_are_proportional_to_the_share_of_time() -> None:
    some = {**busy(), "dma": np.array([0.0, 0.5, 1.0])}

    assert chip_watts(TRN3, some).tolist() == pytest.approx([200, 301.376, 402.752])


def test_products_of_fewer_bits_cost_less_each_and_as_much_a_second() -> None:
    watts = full_rate_watts(H100)

    assert watts["tensor_fp8"] == pytest.approx(watts["tensor_bf16"], rel=2e-3)
    assert H100.tensor_flops_per_s("fp8") == pytest.approx(2 * 989e12, rel=2e-3)


def test_two_formats_in_one_step_add_up() -> None:
    mixed = {name: share for name, share in busy().items() if name != "tensor"}
    mixed |= {"tensor_bf16": np.array([0.5]), "tensor_fp8": np.array([0.25])}
    watts = full_rate_watts(TRN3)

    expected = 200 + watts["tensor_bf16"] / 2 + watts["tensor_fp8"] / 4
    assert chip_watts(TRN3, mixed)[0] == pytest.approx(expected)


@pytest.mark.parametrize("hbm_share", [0.3, 0.5, 0.7, 0.9])
def test_an_h200_that_decodes_draws_what_was_measured(hbm_share: float) -> None:
    """137 to 300 W of 700 W over batches and attentions (arXiv 2605.11999)."""
    assert 137 <= chip_watts(H200, busy(dma=hbm_share, tensor=0.02))[0] <= 300


def test_an_h100_that_prefills_draws_nearly_its_budget() -> None:
    """The prompt phase sets the peak (POLCA, arXiv 2308.12908)."""
    assert chip_watts(H100, busy(tensor=0.85, dma=0.3, vector=0.1))[0] > 0.9 * 700


def test_a_chip_is_held_to_its_budget_and_says_how_much_longer_it_takes() -> None:
    everything = {name: np.ones(1) for name in ENGINES}
    wanted = wanted_watts(H100, everything)
    idle = H100.idle_watts.value

    assert wanted[0] > 700
    assert chip_watts(H100, everything).tolist() == [700]
    assert throttle_factor(H100, wanted)[0] == pytest.approx((wanted[0] - idle) / (700 - idle))
    assert throttle_factor(H100, np.array([600.0, idle])).tolist() == [1.0, 1.0]


def test_a_rack_may_allow_less_than_the_chip_and_never_more() -> None:
    wanted = np.array([1_000.0, 600.0])

    assert throttle_factor(TRN3, wanted, cap_watts=600).tolist() == [2.0, 1.0]
    assert throttle_factor(TRN3, 2 * wanted, cap_watts=5_000).tolist() == [2.25, 1.25]
    with pytest.raises(ConfigError, match="cap_watts=200: expected above 200"):
        throttle_factor(TRN3, wanted, cap_watts=200)


@given(first=shares, second=shares)
def test_watts_stay_between_floor_and_budget_and_never_fall_with_activity(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray]
) -> None:
    busier = {name: np.maximum(first[name], second[name]) for name in first}
    cooler = replace(H100, budget_watts=Figure(value=300, unit="W", source="a test"))

    less, more = chip_watts(cooler, first)[0], chip_watts(cooler, busier)[0]
    assert H100.idle_watts.value <= less <= more <= 300


@given(shares)
def test_stretched_by_its_factor_a_step_draws_what_it_may(engines: dict[str, np.ndarray]) -> None:
    wanted = wanted_watts(H200, engines)
    factor = throttle_factor(H200, wanted)
    stretched = {name: share / factor for name, share in engines.items()}

    assert wanted_watts(H200, stretched)[0] == pytest.approx(chip_watts(H200, engines)[0])


def test_an_engine_that_is_unknown_or_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="engines are"):
        chip_watts(TRN3, {**IDLE, "dsp": np.zeros(1)})
    with pytest.raises(ValueError, match="engines are"):
        chip_watts(TRN3, {"tensor": np.zeros(1)})
    with pytest.raises(ValueError, match="engines are"):
        chip_watts(TRN3, {name: IDLE[name] for name in ENGINES if name != "tensor"})
