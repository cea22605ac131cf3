from dataclasses import replace
from typing import Any

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.latent_attention import LatentAttention
from tests.emulator.specs.tiny_model import TINY


def test_a_tiny_models_parameters_add_up_by_hand() -> None:
    assert TINY.expert_parameters == 3 * 4 * 3
    assert TINY.embedding_parameters == 2 * 10 * 4
    # queries 4x4, keys and values 4x2 each, output 4x4; norms of queries and keys 2 each, of the
    # hidden row 4 twice, router 4x4
    layer = 16 + 8 + 8 + 16 + 2 + 2 + 2 * 4 + 16
    assert TINY.replica_parameters() == 2 * layer + 4 + 80
    assert TINY.parameters == 2 * (layer + 4 * 36) + 4 + 80
    assert TINY.active_parameters == 2 * (layer + 2 * 36) + 4 + 80
    assert TINY.weight_bytes == 2 * TINY.parameters
    assert TINY.kv_bytes_per_token == 2 * 2 * 1 * 2 * 2  # layers, K and V, heads, head_dim, BF16


def test_qwen3_30b_a3b_has_30_5_billion_parameters_and_3_3_billion_active() -> None:
    assert QWEN3_30B_A3B.parameters == pytest.approx(30.5e9, rel=0.01)
    assert 3.3e9 < QWEN3_30B_A3B.active_parameters < 3.4e9  # the model card cuts 3.35 to 3.3
    assert QWEN3_30B_A3B.kv_bytes_per_token == 98_304


def test_tied_embeddings_are_one_table() -> None:
    tied = replace(TINY, tied_embeddings=True)

    assert tied.parameters == TINY.parameters - TINY.vocab * TINY.hidden


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 0),
        ("kv_heads", 3),
        ("experts_per_token", 5),
        ("dense_intermediate", 8),
        ("weight_bytes_per_param", 1),
        ("experts_per_token", 0),
        ("expert_intermediate", 0),
        ("first_dense_layers", 2),
        ("first_dense_layers", -1),
        ("shared_experts", -1),
        ("window_tokens", 16),
        ("full_attention_every", 3),
    ],
)
def test_dimensions_that_make_no_model_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^tiny.{field}="):
        replace(TINY, **{field: value})


DENSE = replace(
    TINY, name="dense", experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=6
)
LATENT = replace(
    TINY,
    name="latent",
    kv_heads=2,
    head_dim=3,
    query_key_norms=False,
    latent=LatentAttention(query_rank=5, kv_rank=6, nope_dim=3, rope_dim=2, value_dim=3),
)


def test_a_dense_model_has_one_network_a_layer_and_no_router_by_hand() -> None:
    layer = 48 + 4 + 8 + 3 * 4 * 6

    assert DENSE.parameters == DENSE.active_parameters == 2 * layer + 4 + 80
    assert (DENSE.moe_layers, DENSE.dense_layers, DENSE.expert_parameters) == (0, 2, 0)
    assert "router" not in {group.name for group in DENSE.tensor_groups()}


def test_a_latent_models_parameters_and_cache_by_hand() -> None:
    attention = 5 * 4 + (6 + 2) * 4  # down to the latents of queries, and of keys and values
    attention += 2 * (3 + 2) * 5 + 2 * (3 + 3) * 6 + 4 * 2 * 3  # up, and out
    layer = attention + 2 * 4 + (5 + 6) + 16

    assert LATENT.replica_parameters() == 2 * layer + 4 + 80
    assert LATENT.kv_bytes_per_token_layer == (6 + 2) * 2
    assert LATENT.head_groups == 2


@pytest.mark.parametrize("field", ["shared_experts", "first_dense_layers"])
def test_a_model_without_experts_has_none_to_share_and_no_layer_before_them(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^dense.{field}="):
        replace(DENSE, **{field: 1})


@pytest.mark.parametrize(
    "changes",
    [{"kv_heads": 1}, {"head_dim": 2}, {"query_key_norms": True}, {"attention_bias": True}],
)
def test_a_latent_goes_with_no_other_kind_of_attention(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^latent\.latent="):
        replace(LATENT, **changes)


@pytest.mark.parametrize("name", ["query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"])
def test_a_latents_dimensions_are_at_least_one(name: str) -> None:
    assert LATENT.latent is not None
    with pytest.raises(ConfigError, match=f"^latent.{name}=0"):
        replace(LATENT.latent, **{name: 0})


def test_a_window_bounds_what_its_layers_keep_of_a_request() -> None:
    model = replace(TINY, layers=5, window_tokens=16, full_attention_every=2)

    assert (model.full_layers, model.window_layers) == (2, 3)  # layers 1 and 3 attend to all
    assert model.kv_bytes_per_token == 5 * 8
    assert model.kv_bytes_per_token_full_layers == 2 * 8
    assert model.kv_window_bytes_per_request == 3 * 16 * 8


def test_groups_say_which_part_belongs_to_key_and_value_heads() -> None:
    groups = {group.name: group for group in TINY.tensor_groups()}

    assert groups["attention"].copy_bytes == 2 * 48 * 2
    assert groups["attention"].kv_bytes == 2 * (8 + 8) * 2
    assert groups["norms"].copy_bytes == (2 * (4 + 8) + 4) * 2
    assert (groups["experts"].copy_bytes, groups["experts"].layers) == (36 * 2, 2)
    assert {name: group.split.value for name, group in groups.items()} == {
        "embedding": "columns",
        "lm_head": "columns",
        "attention": "heads",
        "norms": "whole",
        "router": "whole",
        "experts": "expert",
    }


def test_each_figure_names_its_source_and_derived_ones_are_arithmetic() -> None:
    figures = dict(QWEN3_30B_A3B.figures())

    assert figures["experts"].value == 128
    assert "config.json" in figures["experts"].source
    assert figures["parameters"].value == QWEN3_30B_A3B.parameters
    assert figures["parameters"].source.startswith("arithmetic")
    assert figures["kv_bytes_per_element"].assumed
