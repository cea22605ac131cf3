from dataclasses import replace
from typing import Any

import pytest

from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.specs.qwen3_30b_a3b import QWEN3_30B_A3B

PUBLIC_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}

TINY = ModelSpec(
    name="tiny",
    layers=2,
    hidden=4,
    heads=2,
    kv_heads=1,
    head_dim=2,
    experts=4,
    experts_per_token=2,
    expert_intermediate=3,
    vocab=10,
    max_context_tokens=64,
    tied_embeddings=False,
    source="a test",
)


def test_a_tiny_models_parameters_add_up_by_hand() -> None:
    # queries 4x4, keys and values 4x2 each, output 4x4; norms of queries and keys, 2 each
    assert TINY.attention_parameters_per_layer == 16 + 8 + 8 + 16 + 2 + 2
    assert TINY.router_parameters_per_layer == 4 * 4
    assert TINY.replicated_parameters_per_layer == 52 + 2 * 4 + 16
    assert TINY.expert_parameters == 3 * 4 * 3
    assert TINY.embedding_parameters == 2 * 10 * 4
    assert TINY.replica_parameters() == 2 * 76 + 4 + 80
    assert TINY.parameters == 2 * (76 + 4 * 36) + 4 + 80
    assert TINY.active_parameters == 2 * (76 + 2 * 36) + 4 + 80
    assert TINY.kv_bytes_per_token == 2 * 2 * 1 * 2 * 2  # layers, K and V, heads, head_dim, BF16


def test_qwen3_30b_a3b_has_30_5_billion_parameters_and_3_3_billion_active() -> None:
    assert QWEN3_30B_A3B.parameters == pytest.approx(30.5e9, rel=0.01)
    assert 3.3e9 < QWEN3_30B_A3B.active_parameters < 3.4e9  # the model card cuts 3.35 to 3.3
    assert QWEN3_30B_A3B.kv_bytes_per_token == 98_304


def test_the_catalogs_dimensions_are_those_of_the_public_config() -> None:
    read = ModelSpec.from_hf_config(QWEN3_30B_A3B.name, PUBLIC_CONFIG, QWEN3_30B_A3B.source)

    assert read == QWEN3_30B_A3B


def test_tied_embeddings_are_one_table() -> None:
    tied = replace(TINY, tied_embeddings=True)

    assert tied.parameters == TINY.parameters - TINY.vocab * TINY.hidden


def test_a_float32_checkpoint_has_four_byte_weights_and_keys() -> None:
    model = ModelSpec.from_hf_config("m", {**PUBLIC_CONFIG, "torch_dtype": "float32"}, "a test")

    assert (model.weight_bytes_per_param, model.kv_bytes_per_element) == (4, 4)
    assert model.dtype == "fp32"


def test_the_newer_spelling_of_dtype_wins_over_the_older_and_none_means_bf16() -> None:
    newer = {**PUBLIC_CONFIG, "dtype": "float32"}
    silent = {key: value for key, value in PUBLIC_CONFIG.items() if key != "torch_dtype"}

    assert ModelSpec.from_hf_config("m", newer, "a test").dtype == "fp32"
    assert ModelSpec.from_hf_config("m", silent, "a test").dtype == "bf16"


def test_a_missing_head_dim_is_hidden_over_heads() -> None:
    config = {**PUBLIC_CONFIG, "head_dim": None}

    assert ModelSpec.from_hf_config("m", config, "a test").head_dim == 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("model_type", None),
        ("mlp_only_layers", [0]),
        ("decoder_sparse_step", 2),
        ("attention_bias", True),
        ("use_sliding_window", True),
        ("num_experts", None),
        ("hidden_size", "2048"),
        ("hidden_size", 0),
        ("head_dim", 12.5),
        ("dtype", "float8_e4m3fn"),
    ],
)
def test_a_config_that_cannot_be_timed_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key}="):
        ModelSpec.from_hf_config("m", {**PUBLIC_CONFIG, key: value}, "a test")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 0),
        ("kv_heads", 3),
        ("experts_per_token", 5),
        ("dense_intermediate", 8),
        ("weight_bytes_per_param", 1),
    ],
)
def test_dimensions_that_make_no_model_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^tiny.{field}="):
        replace(TINY, **{field: value})


def test_each_figure_names_its_source_and_derived_ones_are_arithmetic() -> None:
    figures = dict(QWEN3_30B_A3B.figures())

    assert figures["experts"].value == 128
    assert "config.json" in figures["experts"].source
    assert figures["parameters"].value == QWEN3_30B_A3B.parameters
    assert figures["parameters"].source.startswith("arithmetic")
    assert figures["kv_bytes_per_element"].assumed
