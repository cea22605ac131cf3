from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.hopper import H100
from emulator.specs.catalog.trainium1 import TRAINIUM1
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.figure import Figure


def test_trainium3_has_the_figures_of_its_fact_sheet() -> None:
    chip = TRAINIUM3

    assert chip.cores.value == 8
    assert chip.hbm_bytes == 154_618_822_656  # what neuron-ls calls memory_size
    assert chip.hbm_bytes_per_s.value == 4.9e12
    assert chip.dma_bytes_per_s.value == pytest.approx(4.224e12)
    assert chip.dma_start_ns.value == 1_300
    assert chip.tensor_bf16_flops_per_s.value == pytest.approx(629.1e12, rel=1e-3)
    assert chip.tensor_fp32_flops_per_s.value == pytest.approx(157.3e12, rel=1e-3)
    assert chip.tensor_fp8_flops_per_s.value == pytest.approx(2_516.6e12, rel=1e-3)
    assert chip.tensor_fp4_flops_per_s.value == chip.tensor_fp8_flops_per_s.value
    assert chip.vector_flops_per_s.value == pytest.approx(9.6e12)
    assert chip.scalar_ops_per_s.value == pytest.approx(1.2288e12)
    assert chip.link_tray_bytes_per_s.value == 512e9
    assert chip.link_backplane_bytes_per_s.value == 512e9
    assert chip.link_cross_rack_bytes_per_s.value == 128e9
    assert chip.scale_out_bytes_per_s.value == 25e9
    assert chip.microcode_bytes_per_core.value == 96e6
    assert chip.budget_watts.value == 1_000
    assert chip.tensor_sparse_flops_per_s is not None
    assert chip.tensor_sparse_flops_per_s.value == 4 * chip.tensor_flops_per_s("bf16")
    array = chip.matrix
    assert (array.tile_rows.value, array.tile_columns.value) == (128, 128)
    assert (array.mx_tile_rows.value, array.sub_arrays.value) == (512, 4)
    assert array.fill_drain_ns.value == pytest.approx(256 / 2.4)  # cycles at 2.4 GHz


def test_what_nobody_published_is_marked_as_assumed() -> None:
    assumed = [name for name, figure in TRAINIUM3.figures() if figure.assumed]

    assert assumed == ["launch_ns", "idle_watts"]


def test_engines_stream_no_faster_than_the_slower_of_hbm_and_dma() -> None:
    slow = Figure(value=1e12, unit="bytes/s", source="a test")

    assert TRAINIUM3.memory_bytes_per_s == pytest.approx(4.224e12)
    assert replace(TRAINIUM3, hbm_bytes_per_s=slow).memory_bytes_per_s == 1e12


@pytest.mark.parametrize(("lnc", "logical"), [(1, 8), (2, 4), (8, 1)])
def test_lnc_groups_the_physical_cores(lnc: int, logical: int) -> None:
    assert TRAINIUM3.logical_cores(lnc) == logical


def test_an_lnc_that_the_chip_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match=r"lnc=4: expected one of 1, 2, 8"):
        TRAINIUM3.logical_cores(4)


def test_a_format_that_the_engine_does_not_multiply_runs_as_the_next_wider_one() -> None:
    assert TRAINIUM3.tensor_flops_per_s("bf16") == 4 * TRAINIUM3.tensor_flops_per_s("fp32")
    assert H100.tensor_flops_per_s("fp4") == H100.tensor_flops_per_s("fp8") == 1_979e12
    only_bf16 = replace(TRAINIUM1, tensor_fp8_flops_per_s=None)
    assert only_bf16.tensor_flops_per_s("fp4") == only_bf16.tensor_flops_per_s("bf16")
    assert TRAINIUM3.tensor_flops_per_s("fp4") == TRAINIUM3.tensor_fp4_flops_per_s.value


def test_a_rate_of_no_known_format_is_refused_with_the_formats() -> None:
    with pytest.raises(ConfigError, match="dtype=mxfp8: expected fp32, bf16, fp8 or fp4"):
        TRAINIUM3.tensor_flops_per_s("mxfp8")


def test_a_chip_that_idles_above_its_budget_or_has_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="idle_watts"):
        replace(TRAINIUM3, idle_watts=Figure(value=1_001, unit="W", source="a test"))
    with pytest.raises(ConfigError, match="dma_bytes_per_s"):
        replace(TRAINIUM3, dma_bytes_per_s=Figure(value=0, unit="bytes/s", source="a test"))
