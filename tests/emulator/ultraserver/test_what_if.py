"""What a step would take with something faster: against a machine that is really so."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.ceilings import ceilings_of
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.what_if import EVEN_EXPERTS, FULL_SPEED, RESOURCES, what_if_ns

TRN3 = system_by_name("trn3-nl72x2")
TENSOR_RATES = {f"tensor_{name}_flops_per_s" for name in ("fp32", "bf16", "fp8", "fp4", "sparse")}
MOE, DENSE = model_by_name("qwen3-30b-a3b"), model_by_name("llama-3.1-70b")
PARTITION = Partition(chips=4, tp=2, ep=4, lnc=2)
WITHOUT_SUMS = Partition(chips=2, tp=1, ep=2, lnc=8)
"""Ranks of one chip whose cores are one: nothing is added up through HBM or over links."""


def costing(
    model: ModelSpec = MOE,
    chip: ChipSpec = TRN3.chip,
    partition: Partition = PARTITION,
    **given: object,
) -> StepCosting:
    system = replace(TRN3, chip=chip)
    given = {"calibration": ROOFLINE} | given
    made = StepCostModel(system, model, partition, **given)  # type: ignore[arg-type]
    return StepCosting(model=made, slow_factor=np.ones(partition.chips))


def batch(*new_tokens: int, context: int = 1_000) -> StepBatch:
    """Requests by turns on both ranks."""
    new = np.array(new_tokens, dtype=np.int64)
    rank = np.arange(len(new)) % 2
    return StepBatch(
        ranks=2,
        rank=rank,
        new_tokens=new,
        context_tokens=np.full(len(new), context),
        logit_rows=np.bincount(rank, minlength=2).astype(np.int64),
    )


def times(figure: Figure | None, factor: float) -> Figure | None:
    return None if figure is None else replace(figure, value=figure.value * factor)


# The matrix engine's rate stands beside its fill and drain, and links beside hops.
@pytest.mark.parametrize(
    ("resource", "fields"),
    [
        ("vector", ("vector_flops_per_s",)),
        ("scalar", ("scalar_ops_per_s",)),
        ("gpsimd", ("gpsimd_ops_per_s",)),
        ("memory", ("hbm_bytes_per_s", "dma_bytes_per_s")),
    ],
)
@pytest.mark.parametrize("work", [batch(1, 1, 1, 1), batch(2_000, 3_000, 1)])
def test_a_faster_engine_is_a_chip_with_that_engine(
    resource: str, fields: tuple[str, ...], work: StepBatch
) -> None:
    faster = replace(TRN3.chip, **{name: times(getattr(TRN3.chip, name), 3.0) for name in fields})
    expected_ns = costing(chip=faster, partition=WITHOUT_SUMS).cost(work).duration_ns

    shortened_ns = what_if_ns(costing(partition=WITHOUT_SUMS), work, factor=3.0)
    assert shortened_ns[resource] == pytest.approx(expected_ns, rel=1e-4)


@pytest.mark.parametrize("work", [batch(1, 1, 1, 1), batch(2_000, 3_000, 1)])
def test_a_faster_matrix_engine_also_fills_drains_and_gets_going_faster(work: StepBatch) -> None:
    chip = TRN3.chip
    rates = {name: times(getattr(chip, name), 3.0) for name in dir(chip) if name in TENSOR_RATES}
    matrix = chip.matrix
    faster = replace(
        chip,
        **rates,
        matrix=replace(
            matrix,
            fill_drain_ns=times(matrix.fill_drain_ns, 1 / 3),
            ramp_ns=times(matrix.ramp_ns, 1 / 3),
        ),
    )
    expected_ns = costing(DENSE, faster, WITHOUT_SUMS).cost(work).duration_ns

    shortened_ns = what_if_ns(costing(DENSE, partition=WITHOUT_SUMS), work, factor=3.0)
    assert shortened_ns["tensor"] == pytest.approx(expected_ns, rel=1e-6)


def test_faster_launches_are_those_of_kernels_and_of_dmas() -> None:
    work = batch(1, 1, 1, 1)
    starts = {
        name: times(getattr(TRN3.chip, name), 1 / 4) for name in ("launch_ns", "dma_start_ns")
    }
    faster = replace(TRN3.chip, **starts)
    expected_ns = costing(DENSE, faster, WITHOUT_SUMS).cost(work).duration_ns

    slow = costing(DENSE, partition=WITHOUT_SUMS)
    assert what_if_ns(slow, work, factor=4.0)["launches"] == pytest.approx(expected_ns, abs=1)
    assert expected_ns < slow.cost(work).duration_ns - 1_000


def test_drafts_are_shortened_like_the_step_that_verifies_them() -> None:
    faster = replace(
        TRN3.chip,
        **{
            name: times(getattr(TRN3.chip, name), 2.0)
            for name in ("hbm_bytes_per_s", "dma_bytes_per_s")
        },
    )
    work = batch(1, 1, 1, 1)
    drafting = {"partition": WITHOUT_SUMS, "draft_tokens": 3}
    expected_ns = costing(chip=faster, **drafting).cost(work).duration_ns  # type: ignore[arg-type]

    shortened_ns = what_if_ns(costing(**drafting), work, factor=2.0)  # type: ignore[arg-type]
    assert shortened_ns["memory"] == pytest.approx(expected_ns, rel=1e-4)


@pytest.mark.parametrize("overlap", Overlap)
def test_a_step_that_nothing_else_holds_up_is_as_much_faster_as_its_memory(
    overlap: Overlap,
) -> None:
    slow_memory = replace(
        TRN3.chip, **{name: times(getattr(TRN3.chip, name), 1e-4) for name in ("hbm_bytes_per_s",)}
    )
    bound = costing(chip=slow_memory, overlap=overlap)
    work = batch(1, 1, 1, 1)
    shortened_ns = what_if_ns(bound, work, factor=2.0)

    whole_ns = bound.cost(work).duration_ns
    assert shortened_ns["memory"] == pytest.approx(whole_ns / 2, rel=1e-2)
    others = set(RESOURCES) - {"memory"}
    assert all(shortened_ns[resource] == pytest.approx(whole_ns, rel=1e-2) for resource in others)


def test_overheads_are_shortened_by_their_own_resource() -> None:
    def figure(ns: float) -> Figure:
        return Figure(value=ns, unit="ns", source="made up for a test")

    calibration: Calibration = replace(
        ROOFLINE, name="made up", step_ns=figure(4e6), layer_ns=figure(10_000.0)
    )
    made = costing(calibration=calibration)
    work = batch(1, 1)
    whole_ns = made.cost(work).duration_ns
    shortened_ns = what_if_ns(made, work, factor=4.0)

    # Three quarters of 4 ms, and of 10 us in each layer.
    assert whole_ns - shortened_ns["step overheads"] == pytest.approx(3e6, abs=2)
    assert whole_ns - shortened_ns["layer overheads"] == pytest.approx(7_500 * MOE.layers, abs=2)


def test_even_experts_are_worth_something_only_where_they_are_not_even() -> None:
    work = batch(1, 1, 1, 1)
    zipf = ExpertDistribution.parse("zipf:1.2", MOE, seed=1)
    skewed = costing(distribution=zipf)

    even = costing()
    even_ns = even.cost(work).duration_ns
    assert what_if_ns(even, work, factor=2.0)[EVEN_EXPERTS] == pytest.approx(even_ns, abs=1)
    assert what_if_ns(skewed, work, factor=2.0)[EVEN_EXPERTS] < skewed.cost(work).duration_ns
    assert EVEN_EXPERTS not in what_if_ns(costing(DENSE), work, factor=2.0)


@pytest.mark.parametrize("overlap", Overlap)
def test_a_slow_chip_is_worth_what_the_step_takes_without_it(overlap: Overlap) -> None:
    whole = costing(overlap=overlap)
    slow = replace(whole, slow_factor=np.array([1.0, 1.0, 3.0, 1.0]))
    work = batch(1, 1, 1, 1)

    shortened_ns = what_if_ns(slow, work, factor=2.0)
    assert shortened_ns[FULL_SPEED] == whole.cost(work).duration_ns < slow.cost(work).duration_ns
    assert FULL_SPEED not in what_if_ns(whole, work, factor=2.0)


@pytest.mark.long
@given(
    new=st.lists(st.integers(1, 500), min_size=1, max_size=6),
    factor=st.floats(1.01, 100.0),
    overlap=st.sampled_from(Overlap),
)
def test_nothing_gets_slower_and_no_more_than_so_many_times_faster(
    new: list[int], factor: float, overlap: Overlap
) -> None:
    made = costing(overlap=overlap)
    work = batch(*new)
    whole_ns = made.cost(work).duration_ns
    for resource, shorter_ns in what_if_ns(made, work, factor=factor).items():
        if resource != EVEN_EXPERTS:
            assert whole_ns / factor - 1 <= shorter_ns <= whole_ns + 1, resource


def test_a_step_without_requests_takes_no_time_whatever_is_faster() -> None:
    empty = StepBatch(
        ranks=2,
        rank=np.zeros(0, dtype=np.int64),
        new_tokens=np.zeros(0, dtype=np.int64),
        context_tokens=np.zeros(0, dtype=np.int64),
        logit_rows=np.zeros(2, dtype=np.int64),
    )
    assert set(what_if_ns(costing(), empty, factor=2.0).values()) == {0}


@pytest.mark.parametrize("factor", [1.0, 0.5, float("inf"), float("nan")])
def test_a_factor_that_makes_nothing_faster_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match=r"^factor="):
        what_if_ns(costing(), batch(1), factor=factor)


@pytest.mark.parametrize(
    ("model", "flops_format", "tera_flops"),
    # Trainium3's BF16 and MXFP8 rates; gpt-oss has MXFP4 experts, which multiply as MXFP8.
    [("qwen3-30b-a3b", "bf16", 629), ("gpt-oss-120b", "fp4", 2_517)],
)
def test_the_ceiling_is_the_fastest_format_that_the_model_has(
    model: str, flops_format: str, tera_flops: float
) -> None:
    ceilings = ceilings_of(costing(model_by_name(model)).model)

    assert ceilings.flops_format in (flops_format, "fp8")
    assert ceilings.flops_per_s == pytest.approx(tera_flops * 1e12, rel=0.01)
    chip = TRN3.chip
    assert ceilings.hbm_bytes_per_s == pytest.approx(chip.memory_bytes_per_s)
    assert ceilings.idle_watts == chip.idle_watts.value


def test_faster_starts_of_exchanges_save_half_of_them() -> None:
    started = replace(ROOFLINE, exchange_ns=Figure(100e3, "ns", "a test"))
    given = costing(calibration=started)
    asked = batch(1, 1)

    now = given.model.cost(asked).duration_ns
    saved = now - what_if_ns(given, asked, factor=2.0)["collective starts"]

    assert saved > MOE.moe_layers * 100e3  # a dispatch and a combine in each layer, half of each
