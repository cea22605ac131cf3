import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.efficiency import TokenRates
from emulator.power.token_cost import Prices, TokenCost, token_cost
from tests.emulator.power.made_up_rack import round_system

SYSTEM = round_system()
RATES = TokenRates(output_tokens_per_s=1_000, input_tokens_per_s=9_000)


def cost(
    prices: Prices, rates: TokenRates = RATES, chips: int = 4, drawn_watts: float = 5_000
) -> TokenCost:
    return token_cost(prices, rates, system=SYSTEM, chips=chips, drawn_watts=drawn_watts)


def test_an_hour_of_chips_and_energy_by_hand() -> None:
    """4 chips at $2 and 5 kW at $0.10: $8.50 an hour, for 3.6 and 32.4 million tokens."""
    both = cost(Prices(chip_hour_dollars=2, kwh_dollars=0.10))

    assert both.machine_dollars_per_hour == 8
    assert both.energy_dollars_per_hour == pytest.approx(0.5)
    assert both.dollars_per_hour == pytest.approx(8.5)
    assert both.dollars_per_million_output == pytest.approx(8.5 / 3.6)
    assert both.dollars_per_million_input == pytest.approx(8.5 / 32.4)
    assert both.dollars_per_million_total == pytest.approx(8.5 / 36)


def test_a_part_of_a_system_pays_its_chips_share() -> None:
    assert cost(Prices(system_hour_dollars=360)).machine_dollars_per_hour == pytest.approx(10)
    assert cost(Prices(kwh_dollars=0.2)).dollars_per_hour == pytest.approx(1)


def test_a_kind_without_tokens_has_no_price() -> None:
    decode = cost(Prices(chip_hour_dollars=2), TokenRates(output_tokens_per_s=1))
    nothing = cost(Prices(chip_hour_dollars=2), TokenRates(output_tokens_per_s=0))

    assert decode.dollars_per_million_input is None
    assert decode.dollars_per_million_output == decode.dollars_per_million_total
    assert nothing.dollars_per_million_total is None
    assert nothing.dollars_per_hour == 8


positive = st.floats(0.01, 1e4)


@given(positive, positive, positive, st.integers(1, 144))
def test_paying_for_every_token_pays_for_the_hour(
    hourly: float, output: float, read: float, chips: int
) -> None:
    made = TokenRates(output_tokens_per_s=output, input_tokens_per_s=read)
    priced = cost(Prices(chip_hour_dollars=hourly, kwh_dollars=0.1), made, chips=chips)

    for each, rate in (
        (priced.dollars_per_million_output, output),
        (priced.dollars_per_million_input, read),
        (priced.dollars_per_million_total, output + read),
    ):
        assert each is not None
        assert each * rate * 3_600 / 1e6 == pytest.approx(priced.dollars_per_hour)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="prices=none"):
        Prices()
    with pytest.raises(ConfigError, match="kwh_dollars=-1"):
        Prices(kwh_dollars=-1)
    with pytest.raises(ConfigError, match="chip_hour_dollars=inf"):
        Prices(chip_hour_dollars=float("inf"))
    with pytest.raises(ConfigError, match="not both"):
        Prices(chip_hour_dollars=1, system_hour_dollars=1)
    with pytest.raises(ConfigError, match="chips=0"):
        cost(Prices(chip_hour_dollars=1), chips=0)
    with pytest.raises(ConfigError, match="drawn_watts=-1"):
        cost(Prices(chip_hour_dollars=1), drawn_watts=-1)
