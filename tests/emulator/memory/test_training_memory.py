from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError, HbmExhausted
from emulator.memory.training_memory import (
    check_training_fits,
    smallest_training_chips,
    training_cores,
    training_memory,
)
from emulator.specs.catalog.gpt_oss import GPT_OSS_120B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.models import MODELS
from emulator.specs.training_recipe import Recompute, Sharding, TrainingRecipe
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
