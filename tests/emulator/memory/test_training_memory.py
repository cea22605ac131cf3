from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.errors import ConfigError, HbmExhausted
from emulator.memory.training_memory import (
    check_training_fits,
    fits_bytes,
    parts_in_flight,
    smallest_training_chips,
    trained_model,
    training_bytes,
    training_cores,
    training_memory,
)
from emulator.specs.catalog.gpt_oss import GPT_OSS_120B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.specs.models import MODELS
from emulator.specs.recipe_columns import RecipeColumns
from emulator.specs.training_recipe import (
    PipelineSchedule,
    Recompute,
    Sharding,
    TrainingRecipe,
)
from tests.emulator.specs.tiny_model import TINY

RECIPE = TrainingRecipe(sequence_tokens=8, sequences_per_chip=2)
# Of each of 2 layers: queries and output 16 each, keys and values 8 each, two norms of 4, two of
# 2, a router of 16; then a last norm of 4, embedding and LM head of 40 each.
TINY_DENSE = 2 * (16 + 16 + 8 + 8 + 8 + 4 + 16) + 4 + 80
TINY_EXPERT = 36


def held(chips: int, recipe: TrainingRecipe = RECIPE) -> dict[str, int]:
    memory = training_memory(TRN3_NL72X2, TINY, chips, recipe)
    return {str(owner).removeprefix("training/"): size for owner, size in memory.owners}


def test_a_tiny_job_on_two_chips_holds_what_is_counted_by_hand() -> None:
    own = 2 * 2 * TINY_EXPERT  # two of four experts in each of two layers
    layer = 16 * (48 + 48) + 32 * 26  # 16 tokens, and as many pairs on each chip as all have
    logits = 2 * 4 * 16 * 10

    assert held(2) == {
        "microcode": held(2)["microcode"],
        "weights": 2 * (TINY_DENSE + own),
        "gradients": 4 * (TINY_DENSE + own),
        "master": 4 * (TINY_DENSE // 2 + own),
        "moments": 8 * (TINY_DENSE // 2 + own),
        "activations": 2 * layer + layer + logits,
        "collectives": 10**9,
    }


def test_recomputing_keeps_the_inputs_of_layers_and_one_whole_layer() -> None:
    layer = 16 * (48 + 48) + 32 * 26
    inputs = 2 * 16 * 8

    thrifty = held(2, replace(RECIPE, recompute=Recompute.FULL))

    assert thrifty["activations"] == inputs + 2 * layer + 2 * 4 * 16 * 10
    assert {**thrifty, "activations": 0} == {**held(2), "activations": 0}


def test_selective_recomputing_leaves_out_normed_rows_and_gated_products() -> None:
    layer = 16 * (48 + 48) + 32 * 26
    # of 4 hidden elements twice, and of each pair 3 columns; and one more layer in work
    kept = 16 * (48 - 8 + 48 - 8) + 32 * (26 - 6)

    selective = held(2, replace(RECIPE, recompute=Recompute.SELECTIVE))

    assert selective["activations"] == 2 * kept + 2 * layer + 2 * 4 * 16 * 10


def test_a_pipelines_first_stage_keeps_more_micro_batches_and_its_last_has_the_logits() -> None:
    recipe = replace(RECIPE, pp=2, ep=1, micro_batches=8)
    columns = RecipeColumns.of(recipe, 2)
    found = training_bytes(TRN3_NL72X2, trained_model(TINY, recipe), columns)
    by_stage = {str(owner).removeprefix("training/"): size[0] for owner, size in found.items()}
    layer = 16 * (48 + 48) + 32 * 26
    own = 4 * TINY_EXPERT
    first, last = 76 + 40, 76 + 40 + 4  # a layer and the embedding; a layer, norm and LM head

    assert by_stage["activations"].tolist() == [2 * layer + layer, layer + layer + 2 * 4 * 16 * 10]
    assert by_stage["weights"].tolist() == [2 * (first + own), 2 * (last + own)]
    assert by_stage["master"].tolist() == [4 * (first + own), 4 * (last + own)]
    fullest = training_memory(TRN3_NL72X2, TINY, 2, recipe)
    assert fullest.chip_bytes == sum(by_stage.values()).max()


def test_schedules_keep_the_micro_batches_that_their_papers_say() -> None:
    plain = TrainingRecipe(pp=4)

    assert parts_in_flight(plain).tolist() == [4, 3, 2, 1]
    # of virtual stages; the first keeps pp + (pp - 1) / parts whole micro-batches
    assert parts_in_flight(replace(plain, virtual_stages=2)).tolist() == [11, 9, 7, 5]
    both_ways = replace(plain, schedule=PipelineSchedule.DUALPIPE)
    assert parts_in_flight(both_ways).tolist() == [5, 5, 5, 5]


def test_dualpipe_holds_two_stages_weights_and_divides_their_state_twice() -> None:
    recipe = TrainingRecipe(pp=4, ep=4, micro_batches=16)
    model = trained_model(GPT_OSS_120B, recipe)
    one, two = (
        training_bytes(TRN3_NL72X2, model, RecipeColumns.of(replace(recipe, schedule=schedule), 16))
        for schedule in PipelineSchedule
    )
    weights, master = (HbmOwner(use=HbmUse.TRAINING, name=name) for name in ("weights", "master"))

    assert two[weights][0].sum() == 2 * one[weights][0].sum()
    assert two[master][0].sum() == pytest.approx(one[master][0].sum(), rel=1e-6)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "gpt-oss-120b"])
def test_a_rank_of_several_chips_divides_layers_and_rows(name: str) -> None:
    alone, divided = (
        {
            owner.name: size
            for owner, size in training_memory(
                TRN3_NL72X2, MODELS[name], 8, TrainingRecipe(tp=tp)
            ).owners
        }
        for tp in (1, 8)
    )

    assert divided["activations"] == pytest.approx(alone["activations"] / 8, rel=0.01)
    # ZeRO-1 divides the state over eight replicas of one chip, or one of eight
    assert divided["master"] == pytest.approx(alone["master"], rel=0.01)
    if name == "llama-3.1-70b":  # without experts, which lie on all eight either way
        assert divided["weights"] == pytest.approx(alone["weights"] / 8, rel=0.01)


def test_each_stage_of_sharding_divides_more_over_the_chips() -> None:
    own, layer = 2 * 2 * TINY_EXPERT, TINY_DENSE // 2

    gradients = held(2, replace(RECIPE, sharding=Sharding.GRADIENTS))
    weights = held(2, replace(RECIPE, sharding=Sharding.WEIGHTS))

    # beside its half a chip has two buffers of a layer
    assert gradients["gradients"] == 4 * (TINY_DENSE // 2 + own + 2 * layer)
    assert gradients["weights"] == held(2)["weights"]
    assert weights["gradients"] == gradients["gradients"]
    assert weights["weights"] == 2 * (TINY_DENSE // 2 + own + 2 * layer)


def test_groups_that_hold_copies_divide_the_state_of_their_experts() -> None:
    one, two = held(2), held(4, replace(RECIPE, ep=2))
    own = 2 * 2 * TINY_EXPERT

    assert two["weights"] == one["weights"]
    assert two["master"] == 4 * (TINY_DENSE // 4 + own // 2)
    with pytest.raises(ConfigError, match="ep=3"):
        held(4, replace(RECIPE, ep=3))


def test_rows_of_a_large_micro_batch_are_exchanged_through_two_buffers_each_way() -> None:
    recipe = TrainingRecipe(sequences_per_chip=32)
    rows_bytes = 32 * 4_096 * GPT_OSS_120B.hidden * 2

    for model, held_bytes in ((GPT_OSS_120B, 4 * rows_bytes), (MODELS["llama-3.1-8b"], 10**9)):
        memory = training_memory(TRN3_NL72X2, model, 64, recipe)
        by_name = {owner.name: size for owner, size in memory.owners}
        assert by_name["collectives"] == held_bytes


def test_the_catalogs_storage_format_says_nothing_of_training() -> None:
    as_published = training_memory(TRN3_NL72X2, GPT_OSS_120B, 36, TrainingRecipe())
    in_bf16 = training_memory(TRN3_NL72X2, GPT_OSS_120B.at_precision("bf16"), 36, TrainingRecipe())

    assert as_published == in_bf16


def test_a_job_that_does_not_fit_is_refused_with_the_figures_and_what_would_fit() -> None:
    with pytest.raises(HbmExhausted) as refusal:
        check_training_fits(TRN3_NL72X2, GPT_OSS_120B, 8, TrainingRecipe())

    said = str(refusal.value)
    memory = training_memory(TRN3_NL72X2, GPT_OSS_120B, 8, TrainingRecipe())
    assert f"each of 8 chips would hold {memory.chip_bytes:,} bytes" in said
    assert f"and has {4 * 36 * 2**30:,}" in said
    fewest = smallest_training_chips(TRN3_NL72X2, GPT_OSS_120B, TrainingRecipe())
    assert f"that fits: {fewest} chips, or " in said
    assert "training/gradients" in said  # in the usage table


@pytest.mark.parametrize("recompute", list(Recompute))
@pytest.mark.parametrize("sharding", list(Sharding))
def test_the_smallest_number_of_chips_fits_and_none_below_it_does(
    recompute: Recompute, sharding: Sharding
) -> None:
    recipe = TrainingRecipe(recompute=recompute, sharding=sharding)
    fewest = smallest_training_chips(TRN3_NL72X2, QWEN3_30B_A3B, recipe)

    assert fewest is not None
    check_training_fits(TRN3_NL72X2, QWEN3_30B_A3B, fewest, recipe)
    for chips in range(1, fewest):
        with pytest.raises(HbmExhausted):
            check_training_fits(TRN3_NL72X2, QWEN3_30B_A3B, chips, recipe)


@pytest.mark.long
def test_a_model_that_no_number_of_chips_holds_says_so() -> None:
    with pytest.raises(HbmExhausted, match="no number of its chips"):
        check_training_fits(TRN3_NL72X2, MODELS["kimi-k2"], 144, TrainingRecipe())


@given(
    name=st.sampled_from(sorted(MODELS)),
    chips=st.integers(1, 144),
    sequences=st.integers(1, 4),
    recompute=st.sampled_from(Recompute),
    sharding=st.sampled_from(Sharding),
)
@example(name="kimi-k2", chips=1, sequences=1, recompute=Recompute.FULL, sharding=Sharding.WEIGHTS)
def test_more_tokens_hold_more_and_what_fits_is_what_the_allocator_takes(
    name: str, chips: int, sequences: int, recompute: Recompute, sharding: Sharding
) -> None:
    model, cores = MODELS[name], training_cores(TRN3_NL72X2, TrainingRecipe())
    recipe = TrainingRecipe(sequences_per_chip=sequences, recompute=recompute, sharding=sharding)
    more = replace(recipe, sequences_per_chip=sequences + 1)
    memory = training_memory(TRN3_NL72X2, model, chips, recipe)

    assert memory.chip_bytes < training_memory(TRN3_NL72X2, model, chips, more).chip_bytes
    try:
        memory.check_fits(cores)
    except HbmExhausted:
        assert not memory.fits(cores)
    else:
        assert memory.fits(cores)
    counts = {owner: np.array([count, 0]) for owner, count in memory.owners}
    assert fits_bytes(cores, counts).tolist() == [memory.fits(cores), True]
