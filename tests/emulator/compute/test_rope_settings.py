"""Every combination of rotary settings: transformers' cosines and sines, or one line of refusal."""

import copy
import logging
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

from emulator.compute.rope import inverse_frequencies, rotation
from emulator.compute.rope_settings import (
    LinearScaling,
    RopeSettings,
    YarnScaling,
    read_rope_settings,
)
from emulator.errors import CheckpointError

POSITIONS = np.array([0, 1, 2, 63, 500, 4_095])
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 40_960,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
PLAIN = {"rope_type": "default", "rope_theta": 1e6}


def theirs(config: dict[str, Any]) -> Qwen3MoeRotaryEmbedding:
    # A copy, because transformers writes into what it is given.
    return Qwen3MoeRotaryEmbedding(Qwen3MoeConfig.from_dict(copy.deepcopy(config)))


def assert_equal_to_theirs(config: dict[str, Any]) -> RopeSettings:
    rope = read_rope_settings(config, "config.json")
    head_dim, reference = config["head_dim"], theirs(config)
    # A few units in the last place: powers are rounded otherwise.
    found = inverse_frequencies(head_dim, rope)
    np.testing.assert_allclose(found, reference.inv_freq.numpy(), rtol=1e-6)
    heads = torch.zeros(1, 1, len(POSITIONS), head_dim)
    cos, sin = reference(heads, torch.from_numpy(POSITIONS)[None])
    gain, half = reference.attention_scaling, head_dim // 2
    ours = rotation(POSITIONS, head_dim, rope)
    np.testing.assert_allclose(ours.cos[:, 0], cos[0, :, :half].numpy(), atol=1e-3 * gain)
    np.testing.assert_allclose(ours.sin[:, 0], sin[0, :, :half].numpy(), atol=1e-3 * gain)
    return rope


def refusal(more: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_rope_settings(CONFIG | more, "some/config.json")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("some/config.json: ")
    return message


def test_yarn_beside_plain_parameters_is_yarn() -> None:
    config = CONFIG | {"rope_parameters": PLAIN, "rope_scaling": YARN, "rope_theta": 1e6}

    rope = assert_equal_to_theirs(config)

    assert isinstance(rope.scaling, YarnScaling)
    assert rope.theta == 1e6
    assert rope.scaling.attention_factor == pytest.approx(1.1386, abs=1e-4)


def test_what_rope_scaling_leaves_out_is_not_taken_from_rope_parameters() -> None:
    rope = assert_equal_to_theirs(CONFIG | {"rope_parameters": PLAIN, "rope_scaling": YARN})

    assert rope.theta == 10_000.0


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_either_spelling_is_read(key: str, spelling: str) -> None:
    rope = assert_equal_to_theirs(
        CONFIG | {"rope_theta": 7e5, key: {spelling: "linear", "factor": 2.0}}
    )

    assert rope == RopeSettings(theta=7e5, scaling=LinearScaling(factor=2.0))


def test_the_pretrained_context_beside_the_settings_counts_first() -> None:
    rope = assert_equal_to_theirs(
        CONFIG | {"rope_scaling": YARN, "original_max_position_embeddings": 4_096}
    )

    assert isinstance(rope.scaling, YarnScaling)
    assert rope.scaling.original_context_tokens == 4_096


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type=dynamic: must be"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type=longrope: must be default, linear"),
        ({"rope_scaling": {"type": "yarn"}}, "key factor is missing, which rope_type=yarn needs"),
        ({"rope_scaling": YARN | {"factor": 0.5}}, "factor=0.5: must be a number of at least 1"),
        ({"rope_scaling": YARN | {"type": "linear"}}, "must be the same as rope_scaling.type"),
        ({"rope_scaling": YARN | {"beta_fast": "much"}}, "beta_fast=much: must be a number"),
        ({"rope_scaling": YARN | {"truncate": None}}, "truncate=None: must be true or false"),
        ({"rope_scaling": [4.0]}, "rope_scaling=[4.0]: must be an object"),
        ({"rope_parameters": "yarn"}, "rope_parameters=yarn: must be an object"),
        ({"rope_theta": None}, "rope_theta=None: must be a number above 0"),
        ({"rope_parameters": {"full_attention": PLAIN}}, "rope_parameters.full_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: must be 1"),
        (
            {"rope_scaling": YARN, "original_max_position_embeddings": None},
            "original_max_position_embeddings=None",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(more: dict[str, Any], words: str) -> None:
    assert words in refusal(more)


maybe_thetas = st.sampled_from([500.0, 10_000, 1e6, 5_000_000, None])
settings_tables = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(
            ["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "mrope"]
        ),
        "type": st.sampled_from(["default", "linear", "yarn", "su"]),
        "rope_theta": maybe_thetas,
        "factor": st.sampled_from([1, 1.0, 2, 4.0, 7.3, 40.0, 0.5, None]),
        "original_max_position_embeddings": st.sampled_from([512, 4_096, 32_768, 40_960]),
        "attention_factor": st.sampled_from([None, 1.0, 0.7, 1.5]),
        "beta_fast": st.sampled_from([None, 0, 32, 16.0, 1]),
        "beta_slow": st.sampled_from([None, 0, 1, 2.0, 40]),
        "mscale": st.sampled_from([None, 0.0, 1.0, 0.707]),
        "mscale_all_dim": st.sampled_from([None, 0, 1.0, 0.5]),
        "truncate": st.booleans(),
        "low_freq_factor": st.sampled_from([1.0, 2]),
        "high_freq_factor": st.sampled_from([4.0, 8, 1.0]),
        "partial_rotary_factor": st.sampled_from([1.0, 1, 0.5]),
        "sections": st.just([8, 8]),
        "full_attention": st.just({"rope_type": "default"}),
    },
)
YARN_NEEDS = st.fixed_dictionaries({"rope_type": st.just("yarn"), "factor": st.just(4.0)})
LLAMA3_NEEDS = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": st.just(8.0),
        "low_freq_factor": st.just(1.0),
        "high_freq_factor": st.just(4.0),
    }
)
LINEAR_NEEDS = st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": st.just(2.0)})
# Half of the tables are complete ones of a kind that is computed, with further settings; these may
# be overwritten by the settings of `settings_tables` but for the kind itself.
computed_tables = st.builds(
    lambda more, needed: {**needed, **{k: v for k, v in more.items() if not k.endswith("type")}},
    settings_tables,
    st.one_of(YARN_NEEDS, LLAMA3_NEEDS, LINEAR_NEEDS, st.just({"rope_type": "default"})),
)
tables = st.one_of(st.none(), st.just({}), settings_tables, computed_tables, computed_tables)
configs = st.fixed_dictionaries(
    {"head_dim": st.sampled_from([16, 32, 128])},
    optional={
        "rope_parameters": tables,
        "rope_scaling": tables,
        "rope_theta": maybe_thetas,
        "partial_rotary_factor": st.sampled_from([None, 1.0, 0.25]),
        "original_max_position_embeddings": st.sampled_from([2_048, 32_768]),
        "max_position_embeddings": st.sampled_from([8_192, 131_072]),
    },
)


@pytest.mark.slow
@settings(max_examples=600)
@given(configs)
def test_any_combination_gives_transformers_angles_or_a_refusal(more: dict[str, Any]) -> None:
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    try:
        read_rope_settings(CONFIG | more, "c")
    except CheckpointError as error:
        event("refused")
        refusal_line = str(error)
    else:
        assert_equal_to_theirs(CONFIG | more)
        return
    assert re.fullmatch(r"c: (key )?[a-z_.0-9]+[ =:].{10,200}", refusal_line)
