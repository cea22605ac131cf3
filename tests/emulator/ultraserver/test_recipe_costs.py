from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.fabric.collectives import Operation
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.recipe_columns import RecipeColumns
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.specs.training_recipe import (
    PipelineSchedule,
    Recompute,
    Sharding,
    TrainingRecipe,
)
from emulator.ultraserver.recipe_costs import (
    BUBBLE,
    HOPS,
    PARTS,
    RecipeCostModel,
    RecipeCosts,
)
from emulator.ultraserver.recipe_links import job_chips
from emulator.ultraserver.step_parts import DISPATCH_COMBINE, TP_COLLECTIVES
from emulator.ultraserver.training_cost import GRADIENTS, OPTIMIZER, TrainingCost
from tests.emulator.ultraserver.tiny_steps import SHORT_RECIPE

ULTRASERVER = system_by_name("trn3-nl72x2")


def costs_of(
    model: str, chips: int, recipe: TrainingRecipe, system: SystemSpec = ULTRASERVER
) -> RecipeCosts:
    model_costs = RecipeCostModel(system, model_by_name(model), chips)
    return model_costs.costs(RecipeColumns.of(recipe, chips))


def parts(costs: RecipeCosts) -> dict[str, float]:
    return dict(zip(PARTS, costs.parts_ns[:, 0].tolist(), strict=True))


@pytest.mark.long
@settings(max_examples=12)
@given(
    name=st.sampled_from(sorted(MODELS)),
    chips=st.sampled_from([1, 8, 16, 32, 36]),
    recompute=st.sampled_from(Recompute),
    sharding=st.sampled_from(Sharding),
    overlap=st.sampled_from([Overlap.NONE, Overlap.FULL]),
    precision=st.sampled_from(["bf16", "fp8"]),
    system=st.sampled_from(["trn3-nl72x2", "gb200-nvl72"]),
)
def test_jobs_of_plain_ranks_cost_what_the_cost_of_chips_of_choice_says(
    name: str,
    chips: int,
    recompute: Recompute,
    sharding: Sharding,
    overlap: Overlap,
    precision: str,
    system: str,
) -> None:
    recipe = replace(
        SHORT_RECIPE,
        recompute=recompute,
        sharding=sharding,
        overlap=overlap,
        precision=precision,
    )
    machine = system_by_name(system)
    one_by_one = TrainingCost(machine, MODELS[name], range(chips), recipe, checks_hbm=False).step

    found = costs_of(name, chips, recipe, machine)

    assert found.duration_ns[0] == pytest.approx(one_by_one.duration_ns, rel=1e-6)
    assert found.flops[0] == pytest.approx(one_by_one.flops.sum())
    assert found.model_flops[0] == pytest.approx(one_by_one.model_flops)
    if MODELS[name].experts % chips == 0:  # else links are as busy as the slowest chip's
        assert found.chip_watts[0] == pytest.approx(one_by_one.chip_watts.mean(), rel=0.03)
    counted = parts(found)
    for part, part_ns in one_by_one.parts_ns.items():
        assert counted[part] == pytest.approx(part_ns, rel=1e-6, abs=1)


@pytest.mark.long
def test_a_hosts_launches_are_not_made_twice_by_two_half_batches() -> None:
    """Where they are most of a step; two sequences a chip, of which the halves have one each."""
    machine = system_by_name("dgx-b200")
    recipe = TrainingRecipe(sequences_per_chip=2, micro_batches=4, ep=8)

    def one_by_one_ns(overlap: Overlap) -> int:
        job = replace(recipe, overlap=overlap)
        return TrainingCost(machine, MODELS["qwen3-30b-a3b"], range(8), job).step.duration_ns

    overlapped = replace(recipe, overlap=Overlap.TWO_BATCH)
    found = costs_of("qwen3-30b-a3b", 8, overlapped, machine)
    assert one_by_one_ns(Overlap.TWO_BATCH) < one_by_one_ns(Overlap.NONE)
    assert one_by_one_ns(Overlap.TWO_BATCH) == pytest.approx(found.duration_ns[0], rel=0.03)


@pytest.mark.long
@settings(max_examples=10)
@given(
    name=st.sampled_from(["llama-3.1-70b", "deepseek-v3", "gpt-oss-20b"]),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2, 3, 6]),
    virtual_stages=st.sampled_from([1, 2]),
    recompute=st.sampled_from(Recompute),
    overlap=st.sampled_from(Overlap),
)
def test_parts_sum_to_a_step_that_is_worth_no_more_than_it_does(
    name: str, tp: int, pp: int, virtual_stages: int, recompute: Recompute, overlap: Overlap
) -> None:
    recipe = TrainingRecipe(
        tp=tp,
        pp=pp,
        virtual_stages=1 if pp == 1 else virtual_stages,
        micro_batches=12,
        recompute=recompute,
        overlap=overlap,
        ep=8,
    )

    found = costs_of(name, 144, recipe)

    assert found.parts_ns.sum(axis=0) == pytest.approx(found.duration_ns)
    assert (found.parts_ns >= 0).all()
    assert found.model_flops[0] < found.flops[0]
    chip = ULTRASERVER.chip
    assert chip.idle_watts.value < found.chip_watts[0] <= chip.budget_watts.value


def test_a_rank_of_several_chips_does_the_same_products_and_talks() -> None:
    alone, divided = (
        costs_of("llama-3.1-70b", 16, TrainingRecipe(tp=tp, micro_batches=8)) for tp in (1, 8)
    )

    # The same work of an eighth of the tokens; but a chip's four logical cores repeat its only head
    # of keys and values, whose projections are 1/57 of a layer's products.
    assert divided.columns.step_tokens[0] == alone.columns.step_tokens[0] // 8
    assert 1 < divided.flops[0] / (alone.flops[0] / 8) < 1 + 3.5 / 57
    assert parts(alone)[TP_COLLECTIVES] == 0 < parts(divided)[TP_COLLECTIVES]


def test_a_ranks_chips_gather_and_scatter_rows_around_every_block_by_hand() -> None:
    recipe = TrainingRecipe(tp=2, micro_batches=1)
    model = model_by_name("llama-3.1-8b")
    costs = RecipeCostModel(ULTRASERVER, model, 8)
    talked_ns = parts(costs.costs(RecipeColumns.of(recipe, 8)))[TP_COLLECTIVES]
    links = costs.links(model, "bf16")
    rows_bytes = np.array([4_096.0 * 2 * 4_096])
    gather, scatter = (
        links.tensor(operation, 2, rows_bytes).duration_ns[0]
        for operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
    )

    # Two blocks in each of 32 layers, and the LM head, forward and backward; backward the inputs of
    # blocks are gathered once more.
    assert talked_ns == pytest.approx((2 * 65 + 64) * gather + 2 * 65 * scatter)


def test_an_exchange_takes_as_long_as_that_of_its_slowest_group() -> None:
    model = model_by_name("deepseek-v3")
    tokens = np.array([4_096.0])
    one_rack, both_racks = (
        RecipeCostModel(ULTRASERVER, model, chips)
        .links(model, "bf16")
        .experts(48, chips, tokens)
        .exchange.duration_ns[0]
        for chips in (48, 144)
    )

    assert both_racks > one_rack  # chips 48 to 95 lie in two


@pytest.mark.long
def test_nothing_hides_behind_another_micro_batch_where_there_is_none() -> None:
    recipe = TrainingRecipe(ep=8, micro_batches=1, overlap=Overlap.TWO_BATCH)
    alone = parts(costs_of("gpt-oss-20b", 64, recipe))
    exposed = parts(costs_of("gpt-oss-20b", 64, replace(recipe, overlap=Overlap.NONE)))

    assert alone[DISPATCH_COMBINE] == exposed[DISPATCH_COMBINE] > 0


def test_a_bubble_is_the_other_stages_share_of_a_micro_batch_by_hand() -> None:
    recipe = TrainingRecipe(pp=4, micro_batches=8, overlap=Overlap.FULL)
    plain = parts(costs_of("llama-3.1-8b", 8, recipe))
    interleaved = parts(costs_of("llama-3.1-8b", 8, replace(recipe, virtual_stages=2)))

    # Of four stages the last has also the LM head; the others have 8 of 32 layers each.
    worked_ns = sum(plain[name] for name in ("forward", "backward"))
    last_ns = worked_ns / 8
    other_ns = plain[BUBBLE] / 3
    assert 0.5 * last_ns < other_ns < last_ns
    assert interleaved[BUBBLE] == pytest.approx(plain[BUBBLE] / 2, rel=0.01)


def test_dualpipes_bubble_is_that_of_its_paper() -> None:
    """(pp / 2 - 1) x (F + B + B - 3 W) with W half of B, so 7 x (F + B / 2) for 16 stages."""
    recipe = TrainingRecipe(pp=16, micro_batches=32, overlap=Overlap.NONE, ep=4)
    model = model_by_name("deepseek-v3")
    model_costs = RecipeCostModel(ULTRASERVER, model, 64)
    one_way, both_ways = (
        parts(model_costs.costs(RecipeColumns.of(replace(recipe, schedule=schedule), 64)))
        for schedule in PipelineSchedule
    )

    # 1f1b waits for 15 of 16 stages, F + B each; B is twice F, and so F + B / 2 is 2/3 of F + B.
    assert both_ways[BUBBLE] / one_way[BUBBLE] == pytest.approx(7 / 15 * 2 / 3, rel=0.05)


@pytest.mark.long
def test_recomputing_costs_a_little_or_a_forward_pass() -> None:
    none, selective, full = (
        costs_of("deepseek-v3", 128, TrainingRecipe(recompute=recompute, ep=64))
        for recompute in Recompute
    )

    assert parts(none)["recompute"] == 0
    assert 0 < parts(selective)["recompute"] < 0.2 * parts(full)["recompute"]
    assert parts(full)["recompute"] == pytest.approx(parts(full)["forward"], rel=0.1)
    assert parts(selective)[DISPATCH_COMBINE] == parts(none)[DISPATCH_COMBINE]
    assert parts(full)[DISPATCH_COMBINE] == pytest.approx(1.5 * parts(none)[DISPATCH_COMBINE])
    assert none.model_flops[0] == full.model_flops[0]
    assert none.flops[0] < selective.flops[0] < full.flops[0]


@pytest.mark.long
def test_more_sharding_talks_more_and_what_hides_is_not_exposed() -> None:
    recipe = TrainingRecipe(ep=8, micro_batches=8)
    talked = [
        parts(costs_of("gpt-oss-20b", 64, replace(recipe, sharding=sharding)))[GRADIENTS]
        for sharding in Sharding
    ]
    exposed = [
        parts(costs_of("gpt-oss-20b", 64, replace(recipe, overlap=overlap)))[DISPATCH_COMBINE]
        for overlap in Overlap
    ]

    assert talked[0] < talked[1] < talked[2]
    assert exposed[0] > exposed[1] == exposed[2] == 0


@pytest.mark.long
def test_recipes_side_by_side_cost_what_they_cost_alone() -> None:
    base = TrainingRecipe(tp=2, pp=2, micro_batches=4)
    recipes = [
        replace(base, ep=ep, sharding=sharding, recompute=recompute, sequences_per_chip=size)
        for ep, sharding, recompute, size in (
            (8, Sharding.OPTIMIZER, Recompute.NONE, 1),
            (4, Sharding.WEIGHTS, Recompute.FULL, 2),
            (36, Sharding.GRADIENTS, Recompute.SELECTIVE, 1),
        )
    ]
    columns = RecipeColumns(
        base=base,
        chips=144,
        sequences=np.array([each.sequences_per_chip for each in recipes]),
        micro_batches=np.full(3, 4),
        ep=np.array([each.ep for each in recipes]),
        sharding=np.array([int(each.sharding) for each in recipes]),
        recompute=np.array([list(Recompute).index(each.recompute) for each in recipes]),
    )

    together = RecipeCostModel(ULTRASERVER, model_by_name("qwen3-30b-a3b"), 144).costs(columns)

    for place, recipe in enumerate(recipes):
        alone = costs_of("qwen3-30b-a3b", 144, recipe)
        assert columns.recipe(place) == recipe
        assert together.duration_ns[place] == pytest.approx(alone.duration_ns[0])
        assert together.of(place).parts_ns[:, 0] == pytest.approx(alone.parts_ns[:, 0])
        assert together.chip_watts[place] == pytest.approx(alone.chip_watts[0])


def test_a_job_has_equally_many_chips_of_as_few_domains_as_possible() -> None:
    two = ULTRASERVER.cluster(2)

    assert job_chips(two, 144).tolist() == [*range(144)]
    assert job_chips(two, 146).tolist() == [*range(73), *range(144, 217)]
    for chips in (0, 145, 289):
        with pytest.raises(ConfigError, match=f"chips={chips}: expected 1 to 288"):
            job_chips(two, chips)


@pytest.mark.long
def test_stages_on_machines_of_their_own_hop_over_the_network() -> None:
    recipe = TrainingRecipe(pp=2, micro_batches=8, precision="fp8")
    near = costs_of("llama-3.1-70b", 64, recipe)
    far = costs_of("llama-3.1-70b", 64, recipe, system_by_name("dgx-h100").cluster(8))
    apart = costs_of("llama-3.1-70b", 288, recipe, ULTRASERVER.cluster(2))

    assert 0 < parts(near)[HOPS] < parts(apart)[HOPS]
    assert parts(far)[HOPS] > parts(near)[HOPS]
    assert parts(near)[OPTIMIZER] > 0


def test_parts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="pp=3: expected tp x pp = 2 x 3 divides 8 chips"):
        RecipeColumns.of(TrainingRecipe(tp=2, pp=3), 8)
    with pytest.raises(ConfigError, match="ep=3"):
        RecipeColumns.of(TrainingRecipe(ep=3), 8)
    with pytest.raises(ConfigError, match="virtual_stages=2"):
        TrainingRecipe(virtual_stages=2)
    with pytest.raises(ConfigError, match="tp=2: expected 1 on chips of choice"):
        TrainingCost(
            ULTRASERVER, model_by_name("gpt-oss-20b"), range(8), TrainingRecipe(tp=2),
            calibration=ROOFLINE,
        )  # fmt: skip
