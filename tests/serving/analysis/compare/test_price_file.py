"""Prices from a file: read with their sources, or refused in a line."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.analysis.compare.price_file import PriceTerm, read_price_file

ROOT = Path(__file__).parents[4]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return path


def test_prices_are_of_a_machine_s_hour_whichever_way_they_are_given(tmp_path: Path) -> None:
    text = """
        [energy]
        kwh_dollars = { value = 0.1, source = "a bill" }
        grid_gco2_per_kwh = { value = 400, source = "assumed" }
        [systems.dgx-h100.on_demand]
        chip_hour_dollars = 2
        source = "a list"
        [systems."trn2.48xlarge".reserved]
        hour_dollars = 30.5
        source = "a contract"
    """
    found = read_price_file(written(tmp_path, text))

    gpu = found.prices_of("dgx-h100", PriceTerm.ON_DEMAND)
    assert gpu is not None
    assert (gpu.system_hour_dollars, gpu.kwh_dollars) == (16, 0.1)
    assert found.machine_hours["dgx-h100", PriceTerm.ON_DEMAND].source == (
        "arithmetic: 8 x 2 (a list)"
    )
    two = found.prices_of("trn2.48xlarge", PriceTerm.RESERVED, units=2)
    assert two is not None
    assert two.system_hour_dollars == 61
    assert found.prices_of("trn2.48xlarge", PriceTerm.ON_DEMAND) is None
    with pytest.raises(
        ConfigError, match=r"a price of dgx-b200 for on_demand; it has those of dgx"
    ):
        found.required_prices_of("dgx-b200", PriceTerm.ON_DEMAND)


MACHINE = "[systems.dgx-h100.on_demand]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("systems = [", "TOML"),
        ("", "it has none"),
        ("[prices]\n", "prices to be one of energy, systems"),
        ("energy = 3", "energy to be a table"),
        ("[energy]\nkwh = 3", "energy.kwh to be one of kwh_dollars"),
        ("[energy]\nkwh_dollars = 3", "energy.kwh_dollars to be a table"),
        ("[energy]\nkwh_dollars = { value = 3 }", "energy.kwh_dollars.source to be where"),
        ("[systems.dgx-h10.on_demand]\n", "systems.dgx-h10 to be a system of the catalog"),
        ("[systems.dgx-h100.spot]\n", "systems.dgx-h100.spot to be one of on_demand, reserved"),
        (f"{MACHINE}source = 'x'", "on_demand to be one of hour_dollars and chip_hour_dollars"),
        (f"{MACHINE}hour_dollars = 1\nchip_hour_dollars = 1", "to be one of hour_dollars and"),
        (f"{MACHINE}hour_dollars = -1\nsource = 'x'", "hour_dollars to be a number from 0 on"),
        (f"{MACHINE}hour_dollars = nan\nsource = 'x'", "hour_dollars to be a number from 0 on"),
        (f"{MACHINE}hour_dollars = true\nsource = 'x'", "hour_dollars to be a number from 0 on"),
        (f"{MACHINE}hour_dollars = '1'\nsource = 'x'", "hour_dollars to be a number from 0 on"),
        (f"{MACHINE}hour_dollars = 1\nsource = ' '", "source to be where the price comes from"),
        (f"{MACHINE}hour_dollars = 1\nsource = 'x'\nyear = 3", "on_demand.year to be one of"),
    ],
)
def test_a_wrong_file_is_refused_in_a_line_that_names_the_entry(
    text: str, words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read_price_file(path)
    said = str(refused.value)
    assert words in said
    assert said.startswith(f"prices={path}: expected ")
    assert "\n" not in said


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a file to read"):
        read_price_file(tmp_path / "none.toml")
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_price_file(path)


def test_every_price_of_the_example_has_a_source_and_none_is_trn3_s() -> None:
    found = read_price_file(ROOT / "deploy/prices/example.toml")
    for figure in found.machine_hours.values():
        assert "assumed" in figure.source or "public list" in figure.source
    assert not any(name.startswith("trn3") for name, _ in found.machine_hours)
