"""A step's terms: they sum to what the step costs, and each follows its own law."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.figure import Figure
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.ultraserver.peak_expert_load import PeakExpertLoad
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_parts import THROTTLE
from emulator.ultraserver.step_waterfall import (
    HIDDEN,
    ROUNDING,
    WAITING,
    WaterfallTerm,
    merged,
    waterfall,
)

TRN3 = system_by_name("trn3-nl72x2")
FITTED = calibration_for(TRN3.chip.name)
MOE, DENSE = model_by_name("gpt-oss-20b"), model_by_name("llama-3.1-8b")
SHAPES = [(1, 1, 1), (2, 1, 2), (4, 1, 2), (4, 2, 4), (4, 4, 4), (8, 2, 8), (8, 4, 2)]
"""Chips, tp and ep."""
FORWARDED = "links inside domains below their peak"


def cost_model(
    model: ModelSpec = MOE,
    shape: tuple[int, int, int] = (4, 2, 4),
    calibration: Calibration = FITTED,
    overlap: Overlap = Overlap.NONE,
    drafts: int = 0,
) -> StepCostModel:
    chips, tp, ep = shape
    return StepCostModel(
        TRN3,
        model,
        Partition(chips=chips, tp=tp, ep=ep, lnc=2),
        calibration=calibration,
        overlap=overlap,
        draft_tokens=drafts,
    )


def batch(ranks: int, *requests: tuple[int, int]) -> StepBatch:
    """Requests (new tokens, context) by turns on the ranks."""
    new, context = np.array(requests, dtype=np.int64).T
    rank = np.arange(len(new)) % ranks
    return StepBatch(
        ranks=ranks,
        rank=rank,
        new_tokens=new,
        context_tokens=context,
        logit_rows=np.bincount(rank, minlength=ranks).astype(np.int64),
    )


def of_part(terms: tuple[WaterfallTerm, ...], part: str) -> float:
    return sum(term.ns for term in terms if term.part == part)


@pytest.mark.long
@given(
    shape=st.sampled_from(SHAPES),
    moe=st.booleans(),
    overlap=st.sampled_from(list(Overlap)),
    fitted=st.booleans(),
    drafts=st.sampled_from([0, 0, 2]),
    requests=st.lists(
        st.tuples(st.sampled_from([1, 1, 7, 600]), st.integers(0, 9_000)), min_size=1, max_size=12
    ),
    slow=st.sampled_from([1.0, 1.0, 1.7]),
)
def test_the_terms_sum_to_the_step(
    shape: tuple[int, int, int],
    moe: bool,
    overlap: Overlap,
    fitted: bool,
    drafts: int,
    requests: list[tuple[int, int]],
    slow: float,
) -> None:
    calibration = FITTED if fitted else ROOFLINE
    made = cost_model(MOE if moe else DENSE, shape, calibration, overlap, drafts)
    step = batch(made.partition.ranks, *requests)
    slow_factor = np.ones(made.partition.chips)
    slow_factor[-1] = slow

    terms = waterfall(made, step, slow_factor=slow_factor)
    cost = made.cost(step, slow_factor=slow_factor)

    assert sum(term.ns for term in terms) == pytest.approx(cost.duration_ns, abs=1e-3)
    rest = -cost.duration_ns * 1e-9
    for term in terms:
        assert math.isfinite(term.ns)
        assert term.ns <= 1e-6 if term.part.endswith(HIDDEN) else term.ns >= rest, term
    assert -1e-3 <= of_part(terms, ROUNDING) < 1.001
    if overlap is Overlap.NONE:
        assert of_part(terms, HIDDEN) == 0.0, "nothing is hidden, and no term makes up for another"
    elif slow == 1 and overlap is Overlap.FULL and not drafts:
        path = sum(t.ns for t in terms if t.engine == "collectives" and t.part != HIDDEN)
        rest = cost.duration_ns - of_part(terms, ROUNDING) - of_part(terms, THROTTLE)
        computing = rest - path - of_part(terms, HIDDEN)
        # Waiting for the busiest chip's experts, where loads of idle ranks differ, is in neither.
        computing -= sum(t.ns for t in terms if t.part == WAITING)
        assert of_part(terms, HIDDEN) == pytest.approx(-min(path, computing), rel=1e-6, abs=1)


TALK = ("tp_collectives", "collective_launch", "dispatch_combine")


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("shape", SHAPES)
def test_parts_are_those_of_the_compiled_kernels(
    shape: tuple[int, int, int], overlap: Overlap
) -> None:
    made = cost_model(shape=shape, overlap=overlap)
    step = batch(made.partition.ranks, *[(1, 2_000)] * (8 * made.partition.ranks))
    terms, parts_ns = waterfall(made, step), made.cost(step).parts_ns
    for part, ns in parts_ns.items():
        if overlap is Overlap.NONE or part not in TALK:
            assert of_part(terms, part) == pytest.approx(ns, rel=1e-9, abs=1e-3), part
    # The kernels know exposed communication alone; here it is all, less what hides.
    talk_ns = sum(of_part(terms, part) for part in (*TALK, HIDDEN))
    exposed_ns = sum(parts_ns.get(part, 0.0) for part in TALK)
    assert talk_ns == pytest.approx(exposed_ns, rel=1e-9, abs=1e-3)


def test_terms_by_hand() -> None:
    """Sampling reads a row of FP32 logits for each request, and does next to nothing else."""
    made = cost_model(MOE, (1, 1, 1))
    terms = waterfall(made, batch(1, *[(1, 100)] * 3))
    read, below = (
        next(term for term in terms if (term.part, term.term) == ("sampling", name))
        for name in ("bytes of HBM", "dma below its peak")
    )

    assert read.amount == 3 * MOE.vocab * 4
    ((name, rate),) = read.figures
    assert (name, rate) == ("dma_bytes_per_s", TRN3.chip.dma_bytes_per_s)  # below the stacks' rate
    assert read.ns == pytest.approx(read.amount / rate.value * 1e9)
    assert below.figures == (("memory_share", FITTED.memory_share),)
    assert below.ns == pytest.approx(read.ns * (1 / FITTED.memory_share.value - 1))


def test_counts_times_figures_are_overheads() -> None:
    made = cost_model()
    terms = waterfall(made, batch(2, *[(1, 50)] * 10))
    for part, count in (("request", 5), ("layer", MOE.layers), ("step", 1)):
        (term,) = [each for each in terms if each.part == part]
        assert term.amount == pytest.approx(count)
        product = math.prod(figure.value for _, figure in term.figures)
        assert term.ns == pytest.approx(count * product)


def test_factors_of_the_work_are_named() -> None:
    def names(drafts: int, model: ModelSpec) -> set[str]:
        terms = waterfall(cost_model(model, (2, 1, 2), drafts=drafts), batch(2, (1, 50), (1, 50)))
        return {name for term in terms if term.part == "layer" for name, _ in term.figures}

    assert names(0, MOE) == {"layer_ns", "fp4_overhead"}  # its experts are stored in MXFP4
    assert names(2, DENSE) == {"layer_ns", "draft_overhead"}


def test_an_uneven_layer_waits_for_its_busiest_chip() -> None:
    made = cost_model(shape=(4, 1, 4))
    step = batch(4, *[(1, 500)] * 8)
    loads = PeakExpertLoad(made).loads(step)

    terms = waterfall(made, step, loads)

    waited_ns = made.cost(step, loads).duration_ns - made.cost(step).duration_ns
    assert waited_ns > 1
    assert of_part(terms, WAITING) == pytest.approx(waited_ns, abs=2)
    assert of_part(waterfall(made, step), WAITING) == pytest.approx(0.0, abs=1)


def test_a_slow_chip_is_a_wait() -> None:
    made = cost_model(shape=(2, 1, 2))
    step, slow = batch(2, (1, 500), (1, 500)), np.array([1.0, 2.0])
    terms = waterfall(made, step, slow_factor=slow)
    (wait,) = [term for term in terms if term.term == "slow chips"]
    slower_ns = made.cost(step, slow_factor=slow).duration_ns - made.cost(step).duration_ns
    assert wait.ns == pytest.approx(slower_ns, abs=2)


def test_a_budget_stretches_a_step() -> None:
    budget = Figure(TRN3.chip.idle_watts.value + 1, "W", "test: a chip that may hardly work")
    system = replace(TRN3, chip=replace(TRN3.chip, budget_watts=budget))
    made = StepCostModel(system, DENSE, Partition(chips=1, ep=1), calibration=FITTED)
    step = batch(1, (2_000, 0))
    terms = waterfall(made, step)
    cost = made.cost(step)
    assert of_part(terms, THROTTLE) == pytest.approx(cost.parts_ns[THROTTLE], rel=1e-6)
    assert of_part(terms, THROTTLE) > cost.duration_ns / 2


def test_terms_of_several_steps_add_up() -> None:
    made = cost_model()
    one, other = (waterfall(made, batch(2, (new, 10), (1, 900))) for new in (1, 300))
    both = merged([one, other], [0.25, 0.75])
    expected = 0.25 * sum(t.ns for t in one) + 0.75 * sum(t.ns for t in other)
    assert sum(term.ns for term in both) == pytest.approx(expected)
    assert len({term.key for term in both}) == len(both)


def test_a_step_without_requests_has_no_terms() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    empty = StepBatch(
        ranks=2,
        rank=nothing,
        new_tokens=nothing,
        context_tokens=nothing,
        logit_rows=np.zeros(2, dtype=np.int64),
    )
    assert waterfall(cost_model(), empty) == ()


def test_what_a_box_forwards_is_below_the_peak_by_the_share_of_its_stores() -> None:
    boxes = system_by_name("dgx-h800").cluster(2)
    calibration = calibration_for(boxes.chip.name)
    deepseek = model_by_name("deepseek-v3")
    whole = Partition(chips=16, tp=1, ep=16, lnc=132)
    model = StepCostModel(boxes, deepseek, whole, calibration=calibration)

    found = waterfall(model, batch(16, *[(4_096, 0)] * 16))

    of_exchange = {term.term: term for term in found if term.part == "dispatch_combine"}
    peak, below = (of_exchange[name] for name in ("bytes over links", FORWARDED))
    # 58 layers; 4,096 rows and as many of the counterpart to 7 neighbours, each of which holds 16
    # of 256 experts (a token picks 8), dispatched in 1 + 1 / 32 bytes a value and combined in 2
    needed = 1 - math.prod((240 - place) / (256 - place) for place in range(8))
    moved_bytes = 58 * 2 * 4_096 * 7 * needed * 7_168 * (2 + 1 + 1 / 32)
    assert peak.ns == pytest.approx(moved_bytes / 200, rel=1e-6)  # bytes a ns of its links
    assert calibration.store_share is not None
    assert below.figures == (("store_share", calibration.store_share),)
    assert below.ns == pytest.approx(peak.ns * (1 / calibration.store_share.value - 1))
    assert "links below their peak" not in of_exchange


def test_what_network_cards_bound_is_below_the_peak_by_their_share() -> None:
    boxes = system_by_name("dgx-h800").cluster(4)
    whole = Partition(chips=32, tp=1, ep=32, lnc=132)
    model = StepCostModel(boxes, model_by_name("deepseek-v3"), whole)

    found = waterfall(model, batch(32, *[(4_096, 0)] * 32))

    names = {term.term for term in found if term.part == "dispatch_combine"}
    assert "links below their peak" in names
    assert FORWARDED not in names
