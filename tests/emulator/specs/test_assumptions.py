from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.assumptions import Assumption, AssumptionSet, apply_assumption, with_assumptions
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS

SPECS: dict[str, ChipSpec | SystemSpec] = {**CHIPS, **SYSTEMS}


def switches() -> Iterator[tuple[str, AssumptionSet]]:
    """Every switch of the catalog, with the name of a spec that can turn it."""
    for name, chip in CHIPS.items():
        yield from ((name, switch) for switch in chip.switches)
    for name, system in SYSTEMS.items():
        yield from ((name, switch) for switch in (*system.variants, *system.chip.switches))


def an_assumption(name: str, field: str = "idle_watts") -> Assumption:
    return Assumption(
        name=name, why="a test", figures={field: Figure(value=1, unit="W", source="a test")}
    )


def test_links_read_as_aws_writes_them_are_half_as_wide_but_across_racks() -> None:
    chip = TRAINIUM3.assuming("links", "aws_text")

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
    read = SYSTEMS[system].assuming("switch-generation", generation)

    assert read.switch_generation == generation
    assert (read.tray_hops.count, read.backplane_hops.count, read.cross_rack_hops.count) == hops


def test_a_rack_of_the_talk_is_twice_a_system_of_it() -> None:
    assert TRN3_NL72X2.assuming("power", "rack").provisioned_watts.value == 2 * 163_339


@pytest.mark.parametrize(("name", "switch"), switches())
def test_every_switch_is_at_its_first_reading_and_can_be_turned_forth_and_back(
    name: str, switch: AssumptionSet
) -> None:
    spec = SPECS[name]
    default = switch.assumptions[0]

    assert apply_reading_to(spec, switch, default) == spec
    for reading in switch.assumptions[1:]:
        turned = apply_reading_to(spec, switch, reading)
        assert turned != spec
        assert turned.assuming(switch.name, default.name) == spec


def apply_reading_to(
    spec: ChipSpec | SystemSpec, switch: AssumptionSet, reading: Assumption
) -> ChipSpec | SystemSpec:
    turned = spec.assuming(switch.name, reading.name)
    part = turned
    if isinstance(turned, SystemSpec) and switch in turned.chip.switches:
        part = turned.chip
    assert switch.assumption_of(part) is reading
    return turned


@given(st.permutations(["links=aws_text", "hbm=nki", "power=rack", "switch-generation=v3-ualink"]))
def test_readings_of_different_switches_may_come_in_any_order(texts: list[str]) -> None:
    read = with_assumptions(TRN3_NL72X2, texts)

    assert read == with_assumptions(TRN3_NL72X2, sorted(texts))
    assert read.chip.hbm_bytes_per_s.value == 4.7e12
    assert read.provisioned_watts.value == 2 * 163_339


@pytest.mark.parametrize("text", ["links", "links=", "=lanes", ""])
def test_a_reading_that_is_not_switch_equals_reading_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected SWITCH=ASSUMPTION"):
        with_assumptions(TRN3_NL72X2, [text])


def test_an_unknown_switch_or_reading_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"assumption=lanes: .*switch-generation, power, hop, links"
    ):
        with_assumptions(TRN3_NL72X2, ["lanes=links"])
    with pytest.raises(
        ConfigError, match=r"assumption links=some: expected one of lanes, aws_text"
    ):
        with_assumptions(TRAINIUM3, ["links=some"])
    with pytest.raises(ConfigError, match="a switch of h100: none"):
        with_assumptions(CHIPS["h100"], ["links=lanes"])


def test_a_figure_that_no_reading_sets_leaves_a_switch_without_one() -> None:
    switch = AssumptionSet(name="idle", assumptions=(an_assumption("one"), an_assumption("two")))

    assert switch.assumption_of(TRAINIUM3) is None
    assert (
        switch.assumption_of(apply_assumption(TRAINIUM3, an_assumption("any")))
        is switch.assumptions[0]
    )


def test_a_set_of_one_assumption_of_one_name_or_of_different_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match="two assumptions or more"):
        AssumptionSet(name="a", assumptions=(an_assumption("one"),))
    with pytest.raises(ConfigError, match="two assumptions or more"):
        AssumptionSet(name="a", assumptions=(an_assumption("one"), an_assumption("one")))
    with pytest.raises(ConfigError, match="the same fields"):
        AssumptionSet(
            name="a", assumptions=(an_assumption("one"), an_assumption("two", "budget_watts"))
        )


def test_a_reading_that_leaves_a_system_less_than_its_chips_is_one_line() -> None:
    hungry = Assumption(
        name="hungry",
        why="a test",
        figures={"budget_watts": Figure(value=1_200, unit="W", source="a test")},
    )
    switch = AssumptionSet(
        name="test", assumptions=(an_assumption("other", "budget_watts"), hungry)
    )
    chip = replace(TRAINIUM3, switches=(switch,))
    system = replace(TRN3_NL72X2, chip=chip)

    with pytest.raises(ConfigError, match="provisioned_watts=163339: expected at least") as error:
        system.assuming("test", "hungry")

    assert "\n" not in str(error.value)
