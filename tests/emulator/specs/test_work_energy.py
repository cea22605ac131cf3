from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, chip_by_name
from emulator.specs.figure import Figure
from emulator.specs.work_energy import PICO, work_energy_of


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_every_figure_of_every_chip_is_assumed_and_says_why(chip: ChipSpec) -> None:
    for label, figure in work_energy_of(chip).figures():
        assert figure.assumed, label
        assert len(figure.source) > len("assumed: "), label
        assert figure.unit.startswith("pJ/")


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_wider_products_never_cost_less(chip: ChipSpec) -> None:
    energy = work_energy_of(chip)
    joules = [energy.tensor_joules(dtype) for dtype in ("fp4", "fp8", "bf16", "fp32")]

    assert joules == sorted(joules)


def test_a_format_that_is_turned_into_a_wider_one_costs_as_that_one() -> None:
    h100, trn3, b200 = (work_energy_of(chip_by_name(n)) for n in ("h100", "trainium3", "b200"))

    assert h100.tensor_joules("fp4") == h100.tensor_joules("fp8")
    assert trn3.tensor_joules("fp4") == trn3.tensor_joules("fp8")
    assert b200.tensor_joules("fp4") == b200.tensor_joules("fp8") / 2
    ultra = work_energy_of(chip_by_name("gb300"))  # 15 PFLOPS of FP4, 5 of FP8, in one budget
    assert ultra.tensor_joules("fp4") == pytest.approx(ultra.tensor_joules("fp8") / 3)
    no_fp8 = replace(chip_by_name("h100"), tensor_fp8_flops_per_s=None)
    assert work_energy_of(no_fp8).tensor_joules("fp8") == h100.tensor_joules("bf16")


def test_a_newer_process_costs_less_and_an_unknown_chip_counts_as_5_nm() -> None:
    joules = [
        work_energy_of(chip_by_name(name)).tensor_joules("bf16")
        for name in ("trainium3", "b200", "h100")
    ]
    other = replace(chip_by_name("trainium3"), name="another")

    assert joules == pytest.approx([0.396 * PICO, 0.6 / 1.22 * PICO, 0.6 * PICO])
    assert work_energy_of(other).tensor_joules("bf16") == pytest.approx(0.6 * PICO)


def test_an_unknown_format_and_work_for_nothing_are_refused() -> None:
    energy = work_energy_of(chip_by_name("h100"))

    with pytest.raises(ConfigError, match="dtype=int8"):
        energy.tensor_joules("int8")
    with pytest.raises(ConfigError, match="hbm=0"):
        replace(energy, hbm=Figure(value=0, unit="pJ/bit", source="a test"))
