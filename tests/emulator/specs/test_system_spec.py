from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.neuron_instances import INF2_48XLARGE
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.figure import Figure


def a_figure(value: float) -> Figure:
    return Figure(value=value, unit="of a test", source="a test")


def test_an_nl72x2_is_two_racks_of_eighteen_trays_of_four_chips() -> None:
    system = TRN3_NL72X2

    assert (system.racks.value, system.trays_per_rack.value, system.chips_per_tray.value) == (
        2,
        18,
        4,
    )
    assert (system.chips_per_rack, system.chips.value, system.cpus.value) == (72, 144, 36)


def test_the_share_beside_the_chips_is_what_the_budget_leaves() -> None:
    overhead = TRN3_NL72X2.overhead_watts_per_chip

    assert overhead.value == pytest.approx(134.3, abs=0.05)  # 163,339 / 144 - 1,000
    assert overhead.source == "arithmetic: 163,339 W / 144 chips - 1,000 W"


def test_the_power_budget_names_both_readings_of_its_source() -> None:
    source = TRN3_NL72X2.provisioned_watts.source

    assert "two-rack system" in source
    assert "one rack" in source


def test_a_system_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="racks x trays x chips per tray = 144"):
        replace(TRN3_NL72X2, chips=a_figure(143))
    with pytest.raises(ConfigError, match="provisioned_watts"):
        replace(TRN3_NL72X2, provisioned_watts=a_figure(143_999))
    with pytest.raises(ConfigError, match="pue"):
        replace(TRN3_NL72X2, pue=a_figure(0.99))


def test_a_cluster_has_each_total_as_often_as_it_has_units() -> None:
    cluster = TRN3_NL72X2.cluster(3)

    assert (cluster.units, cluster.chips.value, cluster.cpus.value) == (3, 432, 108)
    assert cluster.provisioned_watts.value == 3 * 163_339
    assert cluster.overhead_watts_per_chip.value == TRN3_NL72X2.overhead_watts_per_chip.value
    assert (cluster.racks, cluster.chips_per_rack) == (TRN3_NL72X2.racks, 72)


def test_a_reading_and_a_cluster_come_to_the_same_in_either_order() -> None:
    first = TRN3_NL72X2.assuming("power", "rack").cluster(2)
    last = TRN3_NL72X2.cluster(2).assuming("power", "rack")

    assert first.provisioned_watts.value == last.provisioned_watts.value == 4 * 163_339
    back = last.assuming("power", "system")
    assert back == TRN3_NL72X2.cluster(2)


def test_a_cluster_of_chips_without_network_cards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"units=2: expected 1: inf2.48xlarge has no scale-out"):
        INF2_48XLARGE.cluster(2)
    with pytest.raises(ConfigError, match="units=0"):
        TRN3_NL72X2.cluster(0)
    assert INF2_48XLARGE.cluster(1) is INF2_48XLARGE


def test_a_torus_has_dimensions_that_multiply_to_its_chips() -> None:
    with pytest.raises(ConfigError, match="torus"):
        replace(INF2_48XLARGE, torus=(3, 3))
    with pytest.raises(ConfigError, match="dimensions, for a torus"):
        replace(TRN3_NL72X2, torus=(12, 12))
