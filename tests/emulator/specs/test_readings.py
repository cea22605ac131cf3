from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS
from emulator.specs.figure import Figure
from emulator.specs.readings import Reading, Switch, apply_reading, with_readings
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS

SPECS: dict[str, ChipSpec | SystemSpec] = {**CHIPS, **SYSTEMS}


def switches() -> Iterator[tuple[str, Switch]]:
    """Every switch of the catalog, with the name of a spec that can turn it."""
    for name, chip in CHIPS.items():
        yield from ((name, switch) for switch in chip.switches)
    for name, system in SYSTEMS.items():
        yield from ((name, switch) for switch in (*system.variants, *system.chip.switches))


def a_reading(name: str, field: str = "idle_watts") -> Reading:
    return Reading(
        name=name, why="a test", figures={field: Figure(value=1, unit="W", source="a test")}
    )


def test_links_read_as_aws_writes_them_are_half_as_wide_but_across_racks() -> None:
    chip = TRAINIUM3.read_as("links", "aws_text")

    assert chip.link_tray_bytes_per_s.value == 256e9
    assert chip.link_backplane_bytes_per_s is not None
    assert chip.link_backplane_bytes_per_s.value == 320e9
    assert chip.link_cross_rack_bytes_per_s is not None
    assert chip.link_cross_rack_bytes_per_s.value == 128e9


@pytest.mark.parametrize(
    ("system", "generation", "hops"),
    [
        ("trn3-nl32x2", "v1-160-lane", (1, 2, 3)),
        ("trn3-nl32x2", "v2-320-lane", (1, 1, 2)),
        ("trn3-nl32x2", "v3-ualink", (1, 1, 2)),
        ("trn3-nl72x2", "v1-160-lane", (1, 3, 4)),
        ("trn3-nl72x2", "v2-320-lane", (1, 2, 3)),
        ("trn3-nl72x2", "v3-ualink", (1, 1, 2)),
    ],
)
def test_each_generation_of_switches_has_its_hops(
    system: str, generation: str, hops: tuple[int, int, int]
) -> None:
    read = SYSTEMS[system].read_as("switch-generation", generation)

    assert read.switch_generation == generation
    assert (read.tray_hops.count, read.backplane_hops.count, read.cross_rack_hops.count) == hops


def test_a_rack_of_the_talk_is_twice_a_system_of_it() -> None:
    assert TRN3_NL72X2.read_as("power", "rack").provisioned_watts.value == 2 * 163_339


@pytest.mark.parametrize(("name", "switch"), switches())
def test_every_switch_is_at_its_first_reading_and_can_be_turned_forth_and_back(
    name: str, switch: Switch
) -> None:
    spec = SPECS[name]
    default = switch.readings[0]

    assert apply_reading_to(spec, switch, default) == spec
    for reading in switch.readings[1:]:
        turned = apply_reading_to(spec, switch, reading)
        assert turned != spec
        assert turned.read_as(switch.name, default.name) == spec


def apply_reading_to(
    spec: ChipSpec | SystemSpec, switch: Switch, reading: Reading
) -> ChipSpec | SystemSpec:
    turned = spec.read_as(switch.name, reading.name)
    part = turned
    if isinstance(turned, SystemSpec) and switch in turned.chip.switches:
        part = turned.chip
    assert switch.reading_of(part) is reading
    return turned


@given(st.permutations(["links=aws_text", "hbm=nki", "power=rack", "switch-generation=v3-ualink"]))
def test_readings_of_different_switches_may_come_in_any_order(texts: list[str]) -> None:
    read = with_readings(TRN3_NL72X2, texts)

    assert read == with_readings(TRN3_NL72X2, sorted(texts))
    assert read.chip.hbm_bytes_per_s.value == 4.7e12
    assert read.provisioned_watts.value == 2 * 163_339


@pytest.mark.parametrize("text", ["links", "links=", "=lanes", ""])
def test_a_reading_that_is_not_switch_equals_reading_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected SWITCH=READING"):
        with_readings(TRN3_NL72X2, [text])


def test_an_unknown_switch_or_reading_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"reading=lanes: .*switch-generation, power, hop, links"):
        with_readings(TRN3_NL72X2, ["lanes=links"])
    with pytest.raises(ConfigError, match=r"reading links=some: expected one of lanes, aws_text"):
        with_readings(TRAINIUM3, ["links=some"])
    with pytest.raises(ConfigError, match="a switch of h100: none"):
        with_readings(CHIPS["h100"], ["links=lanes"])


def test_a_figure_that_no_reading_sets_leaves_a_switch_without_one() -> None:
    switch = Switch(name="idle", readings=(a_reading("one"), a_reading("two")))

    assert switch.reading_of(TRAINIUM3) is None
    assert switch.reading_of(apply_reading(TRAINIUM3, a_reading("any"))) is switch.readings[0]


def test_a_switch_of_one_reading_of_one_name_or_of_different_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match="two readings or more"):
        Switch(name="a", readings=(a_reading("one"),))
    with pytest.raises(ConfigError, match="two readings or more"):
        Switch(name="a", readings=(a_reading("one"), a_reading("one")))
    with pytest.raises(ConfigError, match="the same fields"):
        Switch(name="a", readings=(a_reading("one"), a_reading("two", "budget_watts")))


def test_a_reading_that_leaves_a_system_less_than_its_chips_is_one_line() -> None:
    hungry = Reading(
        name="hungry",
        why="a test",
        figures={"budget_watts": Figure(value=1_200, unit="W", source="a test")},
    )
    switch = Switch(name="test", readings=(a_reading("other", "budget_watts"), hungry))
    chip = replace(TRAINIUM3, switches=(switch,))
    system = replace(TRN3_NL72X2, chip=chip)

    with pytest.raises(ConfigError, match="provisioned_watts=163339: expected at least") as error:
        system.read_as("test", "hungry")

    assert "\n" not in str(error.value)
