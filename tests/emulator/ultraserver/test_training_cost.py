from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError, HbmExhausted
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.gpt_oss import GPT_OSS_120B
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.models import MODELS
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import SYSTEMS
from emulator.specs.training_recipe import Recompute, Sharding, TrainingRecipe
from emulator.timing.model_flops import forward_flops
from emulator.ultraserver.training_cost import TrainingCost, TrainingStepCost
from tests.emulator.specs.tiny_model import TINY
from tests.emulator.timing.backward_reference import backward_flops
from tests.emulator.ultraserver.tiny_steps import LAUNCH_NS, SHORT_RECIPE, SLOW_MEMORY

FITTED = calibration_for("trainium3")
# Once a pass: a graph is started, and each of two layers' first transfer.
PASS_NS = LAUNCH_NS + 2 * SLOW_MEMORY.chip.dma_start_ns.value
TINY_RECIPE = TrainingRecipe(sequence_tokens=3, sequences_per_chip=2, micro_batches=2, lnc=8)


def step(chips: int, recipe: TrainingRecipe | None = None, **keywords: object) -> TrainingStepCost:
    cost = TrainingCost(
        TRN3_NL72X2,
        GPT_OSS_120B,
        range(chips),
        recipe,
        checks_hbm=False,
        **({"calibration": ROOFLINE} | keywords),
    )
    return cost.step


def test_a_tiny_job_on_a_slow_memory_takes_a_nanosecond_a_byte_by_hand() -> None:
    cost = TrainingCost(SLOW_MEMORY, TINY, [0], TINY_RECIPE, calibration=ROOFLINE)
    passes = 2 * 2  # two micro-batches, forwards and backwards

    done = cost.step

    assert done.tokens == 2 * 2 * 3
    assert done.duration_ns == int(done.hbm_bytes[0]) + passes * PASS_NS
    # per parameter: norm 4; gradient 4, master and moments 24; the weight in BF16
    assert done.parts_ns["optimizer"] == TINY.parameters * (4 + 28 + 2)
    assert done.parts_ns["gradients"] == done.parts_ns["dispatch_combine"] == 0


def test_a_tiny_forward_pass_moves_the_bytes_that_are_counted_by_hand() -> None:
    done = TrainingCost(
        SLOW_MEMORY, TINY, [0], replace(TINY_RECIPE, micro_batches=1), calibration=ROOFLINE
    ).step
    tokens, pairs = 6, 12
    missed = (1 - 2 / 4) ** tokens  # the chance that no token picks an expert
    layer = 2 * (48 + 12) + tokens * 48 + 2 * 16 + tokens * 48
    layer += 2 * 36 * 4 * (1 - missed) + pairs * 26
    ends = tokens * 8 + 80 + 8 + 4 * 10 * tokens + 4 * 10 * tokens

    assert done.parts_ns["forward"] == pytest.approx(2 * layer + ends + PASS_NS)


def test_a_forward_pass_that_is_made_again_keeps_the_inputs_of_layers_alone_by_hand() -> None:
    recipe = replace(TINY_RECIPE, micro_batches=1, recompute=Recompute.FULL)
    done = TrainingCost(SLOW_MEMORY, TINY, [0], recipe, calibration=ROOFLINE).step
    tokens, missed = 6, (1 - 2 / 4) ** 6
    layer = 2 * (48 + 12) + tokens * (8 + 8) + 2 * 16 + 2 * 36 * 4 * (1 - missed)
    ends = tokens * 8 + 80 + 8 + 4 * 10 * tokens + 4 * 10 * tokens

    assert done.parts_ns["forward"] == pytest.approx(2 * layer + ends + PASS_NS)


def test_the_flops_of_a_step_are_those_of_slow_walks() -> None:
    done = TrainingCost(SLOW_MEMORY, TINY, [0], TINY_RECIPE, calibration=ROOFLINE).step
    forward = forward_flops(TINY, new_tokens=3, logit_rows=3)
    backward = backward_flops(TINY, [3])

    assert done.flops[0] == pytest.approx(2 * 2 * (forward + backward))
    # a step is worth less than it does: scores are made twice
    assert done.model_flops == 2 * 2 * 3 * forward < done.flops[0]


def test_recomputing_does_each_layers_forward_products_once_more() -> None:
    recipe = replace(TINY_RECIPE, recompute=Recompute.FULL)
    plain = TrainingCost(SLOW_MEMORY, TINY, [0], TINY_RECIPE, calibration=ROOFLINE).step
    again = TrainingCost(SLOW_MEMORY, TINY, [0], recipe, calibration=ROOFLINE).step
    layers_flops = forward_flops(TINY, new_tokens=3, logit_rows=0)

    assert again.flops[0] - plain.flops[0] == pytest.approx(2 * 2 * layers_flops)
    assert again.parts_ns["recompute"] > 0
    assert again.parts_ns["backward"] == plain.parts_ns["backward"]
    assert again.model_flops == plain.model_flops


def test_selective_recomputing_makes_no_product_of_a_model_without_a_latent() -> None:
    recipe = replace(TINY_RECIPE, recompute=Recompute.SELECTIVE)
    plain = TrainingCost(SLOW_MEMORY, TINY, [0], TINY_RECIPE, calibration=ROOFLINE).step
    again = TrainingCost(SLOW_MEMORY, TINY, [0], recipe, calibration=ROOFLINE).step
    tokens, pairs = 6, 12
    # normed rows of 4 elements twice a layer, gated products of 3 a pair: not written by the
    # forward pass, but written, and as much read, before the backward pass
    spared = 2 * (tokens * (8 + 8) + pairs * 6)

    assert again.flops[0] == plain.flops[0]
    assert plain.parts_ns["forward"] - again.parts_ns["forward"] == pytest.approx(2 * spared)
    launch_ns = LAUNCH_NS  # of a graph
    assert again.parts_ns["recompute"] == pytest.approx(2 * (2 * spared + launch_ns))


names = st.sampled_from(sorted(MODELS))
systems = st.sampled_from(sorted(SYSTEMS))


@pytest.mark.long
@settings(max_examples=15)
@given(
    name=names,
    system=systems,
    chips=st.integers(1, 16),
    recompute=st.sampled_from(Recompute),
    sharding=st.sampled_from(Sharding),
    overlap=st.sampled_from(Overlap),
    precision=st.sampled_from(["bf16", "fp8"]),
    fitted=st.booleans(),
)
def test_parts_sum_to_the_step_and_chips_draw_between_idle_and_budget(
    name: str,
    system: str,
    chips: int,
    recompute: Recompute,
    sharding: Sharding,
    overlap: Overlap,
    precision: str,
    fitted: bool,
) -> None:
    machine = SYSTEMS[system]
    chips = min(chips, machine.chips.count)
    recipe = replace(
        SHORT_RECIPE,
        recompute=recompute,
        sharding=sharding,
        overlap=overlap,
        precision=precision,
    )
    calibration = calibration_for(machine.chip.name) if fitted else ROOFLINE
    cost = TrainingCost(
        machine, MODELS[name], range(chips), recipe, calibration=calibration, checks_hbm=False
    )

    done = cost.step

    assert 0 <= done.duration_ns - sum(done.parts_ns.values()) < 1 + 1e-6 * done.duration_ns
    assert min(done.parts_ns.values()) >= -1e-6 * done.duration_ns
    idle, budget = machine.chip.idle_watts.value, machine.chip.budget_watts.value
    assert (done.chip_watts > idle).all()
    assert (done.chip_watts <= budget * (1 + 1e-9)).all()
    assert done.joules == pytest.approx(done.chip_watts.sum() * done.duration_ns / 1e9)
    assert done.flops.sum() > done.model_flops * (1 - 1e-9)
    assert cost.owned_parameters.sum() == pytest.approx(cost.model.parameters)


@pytest.mark.long
@settings(max_examples=5)
@given(chips=st.integers(1, 144), sequences=st.integers(1, 3), micro=st.integers(1, 4))
def test_more_tokens_take_longer_and_share_one_update(
    chips: int, sequences: int, micro: int
) -> None:
    recipe = TrainingRecipe(
        sequence_tokens=1_024, sequences_per_chip=sequences, micro_batches=micro
    )
    few = step(chips, recipe)
    more_sequences = step(chips, replace(recipe, sequences_per_chip=sequences + 1))
    more_batches = step(chips, replace(recipe, micro_batches=micro + 1))
    longer = step(chips, replace(recipe, sequence_tokens=2_048))

    for more in (more_sequences, more_batches, longer):
        assert more.duration_ns > few.duration_ns
        assert more.joules > few.joules
    assert more_sequences.tokens_per_s > few.tokens_per_s
    assert more_batches.tokens_per_s > few.tokens_per_s
    assert more_batches.parts_ns["optimizer"] == few.parts_ns["optimizer"]


@pytest.mark.long
@pytest.mark.parametrize("calibration", [ROOFLINE, FITTED], ids=["roofline", "fitted"])
def test_inside_a_rack_more_chips_train_more_tokens_but_for_experts_that_do_not_divide(
    calibration: object,
) -> None:
    sizes = [2, 4, 8, 16, 22, 32, 33, 48, 64, 65, 72]
    speeds = [step(size, calibration=calibration).tokens_per_s for size in sizes]

    for slower, faster in pairwise(speeds):
        assert faster > 0.99 * slower
    # twice the chips with half the experts each
    assert 1.7 < speeds[sizes.index(64)] / speeds[sizes.index(32)] < 2


def test_one_chip_alone_in_the_other_rack_slows_the_whole_job_down() -> None:
    assert step(73).tokens_per_s < step(72).tokens_per_s
    assert step(144).tokens_per_s > step(72).tokens_per_s


def test_chips_of_one_rack_train_faster_than_as_many_of_two() -> None:
    recipe = TrainingRecipe()
    near = TrainingCost(TRN3_NL72X2, GPT_OSS_120B, range(72, 104), recipe, calibration=ROOFLINE)
    far = TrainingCost(
        TRN3_NL72X2, GPT_OSS_120B, [*range(8), *range(72, 96)], recipe, calibration=ROOFLINE
    )

    assert near.step.duration_ns < far.step.duration_ns
    assert near.step.duration_ns == step(32, recipe).duration_ns


def test_what_hides_behind_computing_makes_a_step_shorter_and_no_cheaper_in_work() -> None:
    recipe = TrainingRecipe(sequences_per_chip=2, sharding=Sharding.WEIGHTS)
    alone, halves, bound = (
        step(64, replace(recipe, overlap=overlap), calibration=FITTED)
        for overlap in (Overlap.NONE, Overlap.TWO_BATCH, Overlap.FULL)
    )

    assert bound.duration_ns < halves.duration_ns < alone.duration_ns
    assert bound.link_bytes == pytest.approx(alone.link_bytes)
    assert bound.flops == pytest.approx(alone.flops)
    assert bound.parts_ns["gradients"] < alone.parts_ns["gradients"]


def test_gradients_do_not_hide_where_exchanges_have_the_links_all_the_time() -> None:
    boxes = SYSTEMS["dgx-h800"].cluster(8)  # joined by network cards, which exchanges fill
    recipe = TrainingRecipe(precision="fp8")
    alone, bound = (
        TrainingCost(
            boxes,
            GPT_OSS_120B,
            range(64),
            replace(recipe, overlap=overlap),
            checks_hbm=False,
            calibration=ROOFLINE,
        ).step
        for overlap in (Overlap.NONE, Overlap.FULL)
    )
    computing_ns = alone.parts_ns["forward"] + alone.parts_ns["backward"]

    assert alone.parts_ns["dispatch_combine"] > 1.3 * computing_ns
    assert bound.parts_ns["gradients"] == alone.parts_ns["gradients"]


def test_sharding_more_talks_more() -> None:
    talked = [
        step(64, TrainingRecipe(sharding=sharding)).parts_ns["gradients"] for sharding in Sharding
    ]

    assert talked[0] < talked[1] < talked[2]


def test_fp8_trains_faster_than_bf16_and_experts_in_copies_exchange_less() -> None:
    whole = step(64)

    assert step(64, TrainingRecipe(precision="fp8")).duration_ns < whole.duration_ns
    in_copies = step(64, TrainingRecipe(ep=16))
    assert in_copies.parts_ns["dispatch_combine"] < whole.parts_ns["dispatch_combine"]
    assert in_copies.parts_ns["gradients"] > whole.parts_ns["gradients"]


def test_a_job_that_does_not_fit_is_refused_before_anything_is_counted() -> None:
    with pytest.raises(HbmExhausted, match="that fits: 22 chips, or 16 chips"):
        TrainingCost(TRN3_NL72X2, GPT_OSS_120B, range(8), calibration=ROOFLINE)


@pytest.mark.parametrize("chips", [[], [0, 0], [-1], [144], np.zeros((2, 2), dtype=np.int64)])
def test_chips_that_the_system_has_not_are_refused(chips: list[int]) -> None:
    with pytest.raises(ConfigError, match="different chips of the 144"):
        TrainingCost(TRN3_NL72X2, TINY, chips, calibration=ROOFLINE)


def test_a_checkpoint_holds_every_parameter_once_in_bf16_and_three_times_in_fp32() -> None:
    cost = TrainingCost(TRN3_NL72X2, GPT_OSS_120B, range(24), calibration=ROOFLINE)

    assert cost.checkpoint_bytes.sum() == pytest.approx(14 * GPT_OSS_120B.parameters)
    # 8 chips have 6 of 128 experts, 16 have 5
    assert len(set(cost.checkpoint_bytes.tolist())) == 2
