"""The catalog held against what the models' makers publish, and against their public configs."""

from typing import Any

import pytest
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig

from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.tensor_group import TensorSplit

# Billions of parameters, all and active for one token, as the model cards and papers give them,
# and how the active ones are counted: with both tables, without the embedding, or with neither.
PUBLISHED = {
    "gpt-oss-20b": (20.91, 3.61, "lm head"),  # model card, arXiv 2508.10925, table 1
    "gpt-oss-120b": (116.83, 5.13, "lm head"),  # the same
    "deepseek-v3": (671.0, 37.0, "lm head"),  # arXiv 2412.19437
    "deepseek-r1": (671.0, 37.0, "lm head"),  # arXiv 2501.12948
    "qwen3-30b-a3b": (30.5, 3.3, "both"),  # model card
    "qwen3-235b-a22b": (235.0, 22.0, "both"),  # model card
    "mixtral-8x7b": (46.7, 12.9, "both"),  # Mistral AI's announcement
    "kimi-k2": (1_026.0, 32.0, "lm head"),  # "1 trillion, 32 billion activated", arXiv 2507.20534
    "llama-3.1-8b": (8.03, 8.03, "both"),  # model card
    "llama-3.1-70b": (70.6, 70.6, "both"),  # model card
    "llama-3.1-405b": (405.9, 405.9, "both"),  # the BF16 checkpoint's 811.7 GB
}


def test_the_catalog_has_the_models_whose_sizes_are_published() -> None:
    assert MODELS.keys() == PUBLISHED.keys()
    assert all(name == model.name for name, model in MODELS.items())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones_within_two_thousandths(name: str) -> None:
    total_billions, _, _ = PUBLISHED[name]

    assert model_by_name(name).parameters == pytest.approx(total_billions * 1e9, rel=0.002)


@pytest.mark.parametrize("name", PUBLISHED)
def test_active_parameters_are_the_published_ones_within_a_fiftieth(name: str) -> None:
    _, active_billions, counted = PUBLISHED[name]
    model = model_by_name(name)
    embedding = {"both": 0, "lm head": model.vocab * model.hidden}[counted]

    active = model.active_parameters - embedding
    assert active == pytest.approx(active_billions * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "expected_bytes"),
    [
        ("deepseek-v3", 61 * 576 * 2),
        ("kimi-k2", 61 * 576 * 2),
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("qwen3-235b-a22b", 94 * 2 * 4 * 128 * 2),
        ("mixtral-8x7b", 32 * 2 * 8 * 128 * 2),
        ("llama-3.1-405b", 126 * 2 * 8 * 128 * 2),
    ],
)
def test_a_token_keeps_its_keys_and_values_or_its_latent(name: str, expected_bytes: int) -> None:
    assert model_by_name(name).kv_bytes_per_token == expected_bytes


def test_gpt_oss_takes_the_published_gibibytes() -> None:
    # 60.8 and 12.8 GiB, model card, arXiv 2508.10925, table 1
    assert model_by_name("gpt-oss-120b").weight_bytes / 2**30 == pytest.approx(60.8, abs=0.05)
    assert model_by_name("gpt-oss-20b").weight_bytes / 2**30 == pytest.approx(12.8, abs=0.05)


def test_half_of_gpt_osss_layers_keep_128_tokens() -> None:
    model = model_by_name("gpt-oss-120b")

    assert (model.full_layers, model.window_layers) == (18, 18)
    assert model.kv_bytes_per_token_full_layers == model.kv_bytes_per_token // 2
    assert model.kv_window_bytes_per_request == 18 * 128 * 2 * 8 * 64 * 2


@pytest.mark.parametrize("name", PUBLISHED)
def test_groups_with_every_expert_hold_every_weight_as_it_is_stored(name: str) -> None:
    model = model_by_name(name)
    groups = model.tensor_groups()
    held = sum(
        group.copy_bytes
        * (group.layers * model.experts if group.split is TensorSplit.EXPERT else 1)
        for group in groups
    )
    plain = 2 * model.parameters

    assert held == model.weight_bytes
    if not model.expert_format.is_low_precision:
        assert held == plain
    assert len({group.name for group in groups}) == len(groups)
    assert all(group.copy_bytes > 0 for group in groups)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_declared_cache_has_the_true_bytes(name: str) -> None:
    model = model_by_name(name)

    declared = 2 * model.kv_declared_heads * model.kv_declared_head_size
    assert declared * model.kv_bytes_per_element == model.kv_bytes_per_token_layer
    assert declared * model.kv_bytes_per_element * model.layers == model.kv_bytes_per_token


def test_deepseeks_groups_keep_the_latents_whole_and_split_heads_and_columns() -> None:
    groups = {group.name: group for group in model_by_name("deepseek-v3").tensor_groups()}

    assert groups["latent"].split is TensorSplit.WHOLE
    assert groups["attention"].split is TensorSplit.HEADS
    assert groups["attention"].kv_bytes == 0
    assert groups["dense"].split is groups["shared"].split is TensorSplit.COLUMNS
    assert groups["experts"].layers == 58
    # one byte a weight, and four for each block of 128 x 128
    assert groups["experts"].copy_bytes == 3 * 7_168 * 2_048 + 4 * 3 * 56 * 16


@pytest.mark.parametrize("name", PUBLISHED)
def test_low_precision_says_that_it_is_timed_and_not_computed(name: str) -> None:
    model = model_by_name(name)
    figures = dict(model.figures())

    assert ("expert_bytes_per_param" in figures) == model.expert_format.is_low_precision
    for label in ("expert_bytes_per_param", "projection_bytes_per_param"):
        if label in figures:
            assert figures[label].source.endswith("timed, not computed")
    assert figures["parameters"].value == model.parameters
    assert all("config.json" in figures[label].source for label in ("layers", "vocab"))


def same(model: ModelSpec, config: Any, fields: dict[str, str]) -> None:
    assert {ours: getattr(model, ours) for ours in fields} == {
        ours: getattr(config, theirs) for ours, theirs in fields.items()
    }


BASIC = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "experts_per_token": "num_experts_per_tok",
}


def test_gpt_oss_120b_is_the_default_of_transformers() -> None:
    model, config = model_by_name("gpt-oss-120b"), GptOssConfig()

    same(model, config, BASIC | {"experts": "num_local_experts", "head_dim": "head_dim"})
    same(model, config, {"window_tokens": "sliding_window", "attention_bias": "attention_bias"})
    assert model.expert_intermediate == config.intermediate_size
    full = [kind == "full_attention" for kind in config.layer_types]
    assert full == [(layer + 1) % model.full_attention_every == 0 for layer in range(36)]


def test_deepseek_v3_is_the_default_of_transformers() -> None:
    model, config = model_by_name("deepseek-v3"), DeepseekV3Config()
    latent = {
        "query_rank": "q_lora_rank",
        "kv_rank": "kv_lora_rank",
        "nope_dim": "qk_nope_head_dim",
        "rope_dim": "qk_rope_head_dim",
        "value_dim": "v_head_dim",
    }

    same(model, config, BASIC | {"experts": "n_routed_experts"})
    same(model, config, {"first_dense_layers": "first_k_dense_replace"})
    same(model, config, {"shared_experts": "n_shared_experts"})
    same(model, config, {"dense_intermediate": "intermediate_size"})
    same(model, config, {"expert_intermediate": "moe_intermediate_size"})
    for ours, theirs in latent.items():
        assert getattr(model.latent, ours) == getattr(config, theirs)


def test_mixtral_8x7b_is_the_default_of_transformers() -> None:
    model, config = model_by_name("mixtral-8x7b"), MixtralConfig()

    same(model, config, BASIC | {"experts": "num_local_experts"})
    assert model.expert_intermediate == config.intermediate_size
