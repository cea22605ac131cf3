from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.figure import Figure
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2


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
