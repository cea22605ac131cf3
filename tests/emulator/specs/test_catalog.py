"""The catalog as a whole: names, and what must hold of every entry."""

from collections.abc import Callable

import pytest

from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, DATA_SHEETS, chip_by_name
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import NamedFigures
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS, system_by_name

SPECS: dict[str, ChipSpec | DataSheet | SystemSpec] = {**CHIPS, **DATA_SHEETS, **SYSTEMS}


def test_every_entry_is_found_by_its_own_name() -> None:
    assert all(system_by_name(name).name == name for name in SYSTEMS)
    assert all(model_by_name(name).name == name for name in MODELS)
    assert all(chip_by_name(name) is chip for name, chip in CHIPS.items())
    assert all(sheet.name == name for name, sheet in DATA_SHEETS.items())


def test_no_two_entries_share_a_name() -> None:
    assert len(SPECS) == len(CHIPS) + len(DATA_SHEETS) + len(SYSTEMS)


@pytest.mark.parametrize(
    ("find", "known"),
    [
        (chip_by_name, "trainium3"),
        (system_by_name, "trn3-nl72x2"),
        (model_by_name, "qwen3-30b-a3b"),
    ],
)
def test_an_unknown_name_is_refused_with_the_names(
    find: Callable[[str], object], known: str
) -> None:
    with pytest.raises(ConfigError, match=f"=nothing: expected one of .*{known}"):
        find("nothing")


@pytest.mark.parametrize("name", ["trainium4", "mi455x", "mi450x", "tpu-v7", "inferentia1"])
def test_a_chip_that_cannot_be_timed_is_refused_with_what_is_unpublished(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be timed: .*budget_watts.* unpublished"
    ) as error:
        chip_by_name(name)

    assert "\n" not in str(error.value)


def test_what_is_announced_is_marked_so() -> None:
    announced = [chip.name for chip in CHIPS.values() if chip.announced]
    announced += [sheet.name for sheet in DATA_SHEETS.values() if sheet.announced]

    assert announced == ["trainium4", "mi455x"]


@pytest.mark.parametrize("name", SPECS)
def test_every_figure_has_its_own_name_a_unit_and_a_source(name: str) -> None:
    figures: NamedFigures = SPECS[name].figures()

    assert len({label for label, _ in figures}) == len(figures)
    assert all(figure.unit.strip() and figure.source.strip() for _, figure in figures)
    assert not any(figure.source.endswith(("(", ",", ";")) for _, figure in figures)


@pytest.mark.parametrize("name", CHIPS)
def test_a_narrower_format_is_never_slower_on_any_chip(name: str) -> None:
    rates = [CHIPS[name].tensor_flops_per_s(dtype) for dtype in ("fp32", "bf16", "fp8", "fp4")]

    assert rates == sorted(rates)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_stands_on_a_chip_of_the_catalog_with_links_for_its_tiers(name: str) -> None:
    system = SYSTEMS[name]

    assert CHIPS[system.chip.name] == system.chip
    if system.trays_per_rack.count > 1:
        assert system.chip.link_backplane_bytes_per_s is not None
    if system.racks.count > 1:
        assert system.chip.link_cross_rack_bytes_per_s is not None
    if system.scale_out_start_ns is not None:
        assert system.cluster(2).chips.count == 2 * system.chips.count
