from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.efficiency import PowerBasis, TokenRates, tokens_per_megawatt
from emulator.power.system_power import SystemPower
from tests.emulator.power.made_up_rack import a_figure, round_system

POWER = SystemPower(replace(round_system(), all_in_watts_per_chip=a_figure(2_500)))
RATES = TokenRates(output_tokens_per_s=1_000, input_tokens_per_s=9_000)


def test_the_three_bases_by_hand() -> None:
    """4 chips: 8 kW provisioned, 5 kW drawn, 10 kW all-in."""
    provisioned, drawn, all_in = tokens_per_megawatt(POWER, RATES, chips=4, drawn_watts=5_000)

    assert [m.basis for m in (provisioned, drawn, all_in)] == list(PowerBasis)
    assert (provisioned.output, provisioned.input, provisioned.total) == pytest.approx(
        (125_000, 1_125_000, 1_250_000)
    )
    assert (drawn.watts, drawn.output) == pytest.approx((5_000, 200_000))
    assert (all_in.watts, all_in.output) == pytest.approx((10_000, 100_000))
    assert all_in.why == "published for this machine"


def test_an_all_in_figure_that_nobody_published_says_how_it_was_computed() -> None:
    power = SystemPower(replace(round_system(), all_in_watts_per_chip=None))
    all_in = tokens_per_megawatt(power, RATES, chips=4, drawn_watts=5_000)[2]

    assert all_in.watts == pytest.approx(8_000 * 1.5)
    assert all_in.why == "computed: provisioned x peak PUE 1.5"


rates = st.floats(0, 1e9)


@given(rates, rates, st.integers(1, 144), st.floats(1, 1e6))
def test_kinds_add_up_and_no_tokens_are_made_by_dividing(
    output: float, read: float, chips: int, drawn_watts: float
) -> None:
    made = TokenRates(output_tokens_per_s=output, input_tokens_per_s=read)
    for measured in tokens_per_megawatt(POWER, made, chips=chips, drawn_watts=drawn_watts):
        assert measured.total == pytest.approx(measured.output + measured.input)
        assert measured.output * measured.watts / 1e6 == pytest.approx(output)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="output_tokens_per_s=-1"):
        TokenRates(output_tokens_per_s=-1)
    with pytest.raises(ConfigError, match="input_tokens_per_s=nan"):
        TokenRates(output_tokens_per_s=1, input_tokens_per_s=float("nan"))
    with pytest.raises(ConfigError, match="drawn_watts=0"):
        tokens_per_megawatt(POWER, RATES, chips=4, drawn_watts=0)
    with pytest.raises(ConfigError, match="chips=145"):
        tokens_per_megawatt(POWER, RATES, chips=145, drawn_watts=1)
