"""Totals that vendors print of whole systems, against what the catalog's parts add up to.

The catalog holds chips; these are figures of their instances and racks, printed on other pages.
"""

import pytest

from emulator.specs.assumptions import with_assumptions
from emulator.specs.chips import CHIPS
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.units import GIB

SPEC = ("tensor=spec",)  # the printed totals are made of the chips' printed rates


def total(system: SystemSpec, label: str) -> float:
    return dict(system.figures())[f"total_{label}"].value


@pytest.mark.parametrize(
    ("name", "fp8", "bf16", "fp32"),
    [
        ("trn2.48xlarge", 20.8e15, 10.7e15, 2.9e15),
        ("trn2-ultraserver", 83.2e15, 42.8e15, 11.6e15),
        ("trn3-nl32x2", 161_088e12, 42_944e12, 11_712e12),
        ("trn3-nl72x2", 362_448e12, 96_624e12, 26_352e12),
    ],
)
def test_rates_of_a_system_are_those_aws_prints(
    name: str, fp8: float, bf16: float, fp32: float
) -> None:
    system = with_assumptions(SYSTEMS[name], SPEC)

    assert total(system, "fp8_flops_per_s") == pytest.approx(fp8, rel=2e-3)
    assert total(system, "bf16_flops_per_s") == pytest.approx(bf16, rel=4e-3)
    chips = system.chips.count
    assert chips * system.chip.tensor_flops_per_s("fp32") == pytest.approx(fp32, rel=4e-3)


@pytest.mark.parametrize(("name", "pflops"), [("trn2-ultraserver", 164), ("trn2.48xlarge", 41)])
def test_sparse_rates_of_a_system_are_those_aws_prints(name: str, pflops: float) -> None:
    system = with_assumptions(SYSTEMS[name], SPEC)

    sparse = system.chip.tensor_sparse_flops_per_s
    assert sparse is not None
    assert system.chips.count * sparse.value == pytest.approx(pflops * 1e15, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "gib", "bytes_per_s"),
    [
        ("inf2.48xlarge", 384, 9_840 * GIB),
        ("trn1.32xlarge", 512, 13_120 * GIB),
        ("trn2.48xlarge", 1_536, 46.4e12),
        ("trn2-ultraserver", 6_144, 185.6e12),
        ("trn3-nl32x2", 9_216, 313.6e12),
        ("trn3-nl72x2", 20_736, 705.6e12),
    ],
)
def test_memory_of_a_system_is_what_aws_prints(name: str, gib: int, bytes_per_s: float) -> None:
    assert total(SYSTEMS[name], "hbm_bytes") == gib * GIB
    assert total(SYSTEMS[name], "hbm_bytes_per_s") == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("name", "gb"),  # per GPU, by its datasheet
    [
        ("h100", 80),
        ("h800", 80),
        ("h200", 141),
        ("b200", 180),
        ("gb200", 186),
        ("b300", 270),
        ("gb300", 279),
        ("mi300x", 192),
        ("mi325x", 256),
        ("mi355x", 288),
    ],
)
def test_a_gpus_memory_is_what_its_maker_prints_in_binary_units(name: str, gb: float) -> None:
    """Drivers show up to one per cent less than so many GiB, and never as little as 10^9."""
    seen = CHIPS[name].hbm_bytes

    assert seen == pytest.approx(gb * GIB, rel=0.01)
    assert gb * 1e9 < seen <= gb * GIB


@pytest.mark.parametrize(
    ("name", "tb_per_s"), [("dgx-h100", 26.8), ("dgx-h200", 38.4), ("dgx-b200", 62)]
)
def test_memory_of_a_dgx_is_as_fast_as_nvidia_prints(name: str, tb_per_s: float) -> None:
    assert total(SYSTEMS[name], "hbm_bytes_per_s") == pytest.approx(tb_per_s * 1e12, rel=0.01)


def test_an_nvl72_has_its_datasheets_rates_and_links() -> None:
    gb200, gb300 = SYSTEMS["gb200-nvl72"], SYSTEMS["gb300-nvl72"]

    assert total(gb200, "fp4_flops_per_s") == 720e15  # 1,440 PFLOPS with sparsity
    assert total(gb300, "fp4_flops_per_s") == pytest.approx(1_080e15)  # 1.1 EFLOPS, dense
    both_ways = 2 * 72 * gb200.chip.link_tray_bytes_per_s.value
    assert both_ways == pytest.approx(130e12, rel=0.01)  # 130 TB/s of NVLink


def test_a_box_of_eight_mi300x_has_its_platforms_rates() -> None:
    box = SYSTEMS["mi300x-8"]

    assert total(box, "hbm_bytes") == pytest.approx(1_536 * GIB, rel=1e-3)  # 1.5 TB
    assert total(box, "fp8_flops_per_s") == pytest.approx(20.9e15, rel=1e-3)
    both_ways = 2 * box.chip.link_tray_bytes_per_s.value
    assert both_ways == 896e9  # Infinity Fabric, per GPU


def test_one_ultraserver_beside_the_last_one_is_what_the_keynote_rounds() -> None:
    new = with_assumptions(SYSTEMS["trn3-nl72x2"], SPEC)
    old = with_assumptions(SYSTEMS["trn2-ultraserver"], SPEC)

    def ratio(label: str) -> float:
        return total(new, label) / total(old, label)

    assert ratio("fp8_flops_per_s") == pytest.approx(4.36, abs=0.005)  # "4.4x compute"
    assert ratio("hbm_bytes_per_s") == pytest.approx(3.80, abs=0.005)  # "3.9x bandwidth"
    assert ratio("hbm_bytes") == 3.375


@pytest.mark.parametrize(
    ("name", "page_tflops", "core_tflops", "cores"),
    [("trainium2", 667, 79, 8), ("trainium3", 671, 79, 8)],
)
def test_the_array_is_what_a_core_is_said_to_do_and_the_chips_page_says_more(
    name: str, page_tflops: float, core_tflops: float, cores: int
) -> None:
    array = CHIPS[name].tensor_flops_per_s("bf16")

    assert array == pytest.approx(cores * core_tflops * 1e12, rel=0.01)
    page = CHIPS[name].assuming("tensor", "spec").tensor_flops_per_s("bf16")
    assert page == page_tflops * 1e12 > array


@pytest.mark.parametrize(("name", "both_ways_gb_per_s"), [("trainium2", 1_280), ("trainium1", 384)])
def test_links_of_all_tiers_are_the_chips_neuronlink(name: str, both_ways_gb_per_s: float) -> None:
    chip = CHIPS[name]
    tiers = (
        chip.link_tray_bytes_per_s,
        chip.link_backplane_bytes_per_s,
        chip.link_cross_rack_bytes_per_s,
    )

    assert 2 * sum(tier.value for tier in tiers if tier) == both_ways_gb_per_s * 1e9


def test_the_headline_of_trainium3s_links_counts_the_lanes_to_spare() -> None:
    chip = CHIPS["trainium3"].assuming("links", "headline")

    assert chip.link_backplane_bytes_per_s is not None
    assert chip.link_cross_rack_bytes_per_s is not None
    one_way = (
        chip.link_tray_bytes_per_s.value
        + chip.link_backplane_bytes_per_s.value
        + chip.link_cross_rack_bytes_per_s.value
    )
    assert 2 * one_way == 2_560e9


def test_a_gpus_rates_follow_from_its_units_and_clock() -> None:
    h100, mi300x, mi355x = CHIPS["h100"], CHIPS["mi300x"], CHIPS["mi355x"]

    # 132 SMs x 128 FMAs x 2 at 1.98 GHz, and 304 or 256 CUs x 256 flops at 2.1 or 2.4 GHz.
    assert h100.vector_flops_per_s.value == pytest.approx(132 * 128 * 2 * 1.98e9, rel=0.005)
    assert mi300x.vector_flops_per_s.value == pytest.approx(304 * 256 * 2.1e9, rel=1e-3)
    assert mi355x.vector_flops_per_s.value == pytest.approx(256 * 256 * 2.4e9, rel=1e-3)
    # A tensor core pair of numbers that its maker prints apart: 4,096 FP8 flops a CU and cycle.
    assert mi300x.tensor_flops_per_s("fp8") == pytest.approx(304 * 4_096 * 2.1e9, rel=1e-3)
    assert mi355x.tensor_flops_per_s("fp8") == pytest.approx(256 * 8_192 * 2.4e9, rel=1e-3)
