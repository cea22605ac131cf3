import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import transformers

from emulator.compute.architecture import Architecture, Routing
from emulator.compute.checkpoint import architecture_from_config, read_architecture
from emulator.compute.rope_settings import RopeSettings, YarnScaling
from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from tests.emulator.compute.test_model_spec import DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "num_experts": 16,
    "num_experts_per_tok": 5,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "vocab_size": 201,
    "max_position_embeddings": 777,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in CONFIG.items() if key not in keys}


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        architecture_from_config(config, "some/config.json")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("some/config.json: ")
    return message


def test_every_dimension_is_read_from_its_key() -> None:
    assert architecture_from_config(CONFIG, "c") == Architecture(
        family="Qwen3MoeForCausalLM",
        layers=3,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=24,
        score_scale=24**-0.5,
        query_key_norms=True,
        windows=(0, 0, 0),
        experts=16,
        experts_per_token=5,
        expert_intermediate=48,
        routing=Routing(normalise=True),
        vocab=201,
        max_context_tokens=777,
        tied_embeddings=True,
        norm_eps=1e-5,
        rope=RopeSettings(theta=500.0),
    )


def test_what_may_be_left_out_has_the_architectures_defaults() -> None:
    optional = ("head_dim", "norm_topk_prob", "tie_word_embeddings", "rms_norm_eps", "rope_theta")

    arch = architecture_from_config(without(*optional), "c")

    assert arch.head_dim == 64 // 4
    assert not arch.routing.normalise
    assert not arch.tied_embeddings
    assert (arch.norm_eps, arch.rope.theta) == (1e-6, 10_000.0)
    assert architecture_from_config(CONFIG | {"head_dim": None}, "c").head_dim == 16


def test_newer_spellings_are_understood() -> None:
    rope = {"rope_type": "default", "rope_theta": 7e5}
    newer = without("rope_theta", "num_experts") | {
        "rope_parameters": rope,
        "num_local_experts": 32,
    }

    arch = architecture_from_config(newer, "c")

    assert (arch.rope.theta, arch.experts) == (7e5, 32)
    both = architecture_from_config(CONFIG | {"rope_parameters": rope}, "c")
    assert both.rope.theta == 7e5, "the newer one counts"


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    assert refusal(without(key)) == f"some/config.json: key {key} is missing"


@pytest.mark.parametrize("names", [["Qwen2ForCausalLM"], "Gemma3ForCausalLM", [], None])
def test_another_architecture_is_named_with_those_that_are_computed(names: Any) -> None:
    message = refusal(CONFIG | {"architectures": names})

    named = names[0] if isinstance(names, list) and names else names or "none"
    assert f"architectures={named}: only LlamaForCausalLM, " in message
    assert message.endswith(" are computed")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("use_sliding_window", True),
        ("mlp_only_layers", [3]),
        ("mlp_only_layers", [0, 1, 2]),
        ("decoder_sparse_step", 4),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_a_variant_that_is_not_computed_is_refused_by_name(key: str, value: Any) -> None:
    assert f"{key}={value}: must " in refusal(CONFIG | {key: value})


def test_a_head_that_has_no_pairs_is_refused() -> None:
    assert "head_dim=23: must give 4 heads an even width" in refusal(CONFIG | {"head_dim": 23})
    narrow = without("head_dim") | {"hidden_size": 3}
    assert "hidden_size=3: must give 4 heads an even width" in refusal(narrow)


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (LLAMA, transformers.LlamaConfig),
        (LLAMA | {"architectures": ["Qwen3ForCausalLM"]}, transformers.Qwen3Config),
        (CONFIG, transformers.Qwen3MoeConfig),
        (MIXTRAL, transformers.MixtralConfig),
        (GPT_OSS, transformers.GptOssConfig),
    ],
)
def test_heads_that_are_left_out_are_transformers(config: dict[str, Any], reference: Any) -> None:
    own = {k: v for k, v in config.items() if k not in ("head_dim", "num_key_value_heads")}
    own |= {"hidden_size": 2048, "num_attention_heads": 32}
    expected = reference(hidden_size=2048, num_attention_heads=32)

    arch = architecture_from_config(own, "c")

    assert arch.head_dim == (getattr(expected, "head_dim", None) or 2048 // 32)
    assert arch.kv_heads == expected.num_key_value_heads


def test_a_latents_heads_do_not_depend_on_the_hidden_width() -> None:
    odd = DEEPSEEK | {"hidden_size": 3 * DEEPSEEK["num_attention_heads"]}

    assert architecture_from_config(odd, "c").head_dim == DEEPSEEK["v_head_dim"]


@pytest.mark.parametrize("config", [LLAMA, CONFIG, MIXTRAL, GPT_OSS, DEEPSEEK])
@pytest.mark.parametrize(
    "stored",
    [
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    ],
)
def test_nvfp4_is_refused_with_the_reason(config: dict[str, Any], stored: dict[str, str]) -> None:
    message = refusal(config | {"quantization_config": stored})

    assert message.startswith("some/config.json: quantization_config: NVFP4 has an E4M3 scale")


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (LLAMA, "quantization_config", "fp8"),
        (DEEPSEEK, "quantization_config", "fp8"),
        (GPT_OSS, "quantization_config", [1]),
        (GPT_OSS, "layer_types", 5),
        (LLAMA, "layer_types", 5),
        (GPT_OSS, "layer_types", [["full_attention"]]),
        (LLAMA, "architectures", [["LlamaForCausalLM"]]),
        (LLAMA, "num_hidden_layers", 10**30),
        (LLAMA, "hidden_size", 10**30),
        (CONFIG, "mlp_only_layers", [[1]]),
        (CONFIG, "mlp_only_layers", [True]),
        (LLAMA, "quantization_config", {"quant_method": "fp8", "note": "not nvfp4"}),
    ],
)
def test_what_is_malformed_is_refused_by_name(config: dict[str, Any], key: str, value: Any) -> None:
    assert f"{key}=" in refusal(config | {key: value})


def test_settings_that_change_nothing_are_let_through() -> None:
    same = {
        "attention_bias": False,
        "use_sliding_window": False,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "rope_scaling": None,
        "quantization_config": None,
    }

    assert architecture_from_config(CONFIG | same, "c") == architecture_from_config(CONFIG, "c")


@pytest.mark.parametrize("value", ["many", None, [4]])
def test_a_value_that_is_no_number_is_one_line(value: Any) -> None:
    assert "vocab_size" in refusal(CONFIG | {"vocab_size": value})


class TestFamilies:
    """What families have otherwise than the base."""

    @pytest.mark.parametrize(
        "config",
        [
            CONFIG,
            CONFIG | {"architectures": ["Qwen3ForCausalLM"]},
            LLAMA,
            MIXTRAL,
            GPT_OSS,
            DEEPSEEK,
        ],
        ids=lambda config: config["architectures"][0],
    )
    def test_what_is_left_out_has_transformers_defaults(self, config: dict[str, Any]) -> None:
        optional = ("rms_norm_eps", "rope_theta", "rope_scaling", "quantization_config")
        short = {key: value for key, value in config.items() if key not in optional}
        short["intermediate_size"] = 48
        name = config["architectures"][0].replace("ForCausalLM", "Config")
        theirs = getattr(transformers, name)(**copy.deepcopy(short))

        ours = architecture_from_config(short, "c")

        assert ours.norm_eps == theirs.rms_norm_eps
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
        assert (ours.rope.scaling is None) == (theirs.rope_parameters["rope_type"] == "default")

    def test_gpt_oss_has_its_own_rotary_scaling_with_a_theta_beside(self) -> None:
        silent = {key: value for key, value in GPT_OSS.items() if key != "rope_scaling"}

        rope = architecture_from_config(silent | {"rope_theta": 7e4}, "c").rope

        assert rope.theta == 7e4
        assert isinstance(rope.scaling, YarnScaling)
        assert rope.scaling.factor == 32
        plain = architecture_from_config(silent | {"rope_parameters": {}}, "c").rope
        assert plain == RopeSettings(theta=150_000.0), "settings that are empty are plain RoPE's"

    def test_an_mscale_of_all_dimensions_sharpens_deepseeks_scores_in_every_scaling(self) -> None:
        rope = {"rope_type": "linear", "factor": 4.0, "mscale_all_dim": 0.5}
        sharper = (0.1 * 0.5 * math.log(4.0) + 1.0) ** 2

        def scale(rope: dict[str, Any]) -> float:
            return architecture_from_config(DEEPSEEK | {"rope_scaling": rope}, "c").score_scale

        assert scale(rope) == pytest.approx(sharper * (128 + 64) ** -0.5, rel=1e-12)
        assert scale(rope | {"rope_type": "default"}) == (128 + 64) ** -0.5
        bad = DEEPSEEK | {"rope_scaling": rope | {"mscale_all_dim": "much"}}
        assert "rope_scaling: mscale_all_dim=much: must be a number" in refusal(bad)

    @pytest.mark.parametrize(
        ("config", "key", "value"),
        [
            (DEEPSEEK, "rope_interleave", False),
            (DEEPSEEK, "rope_interleave", None),
            (DEEPSEEK, "norm_topk_prob", None),
            (DEEPSEEK, "topk_group", 9),
            (DEEPSEEK, "num_experts_per_tok", 4 * 256 // 8 + 1),
            (DEEPSEEK, "first_k_dense_replace", 61),
            (DEEPSEEK, "q_lora_rank", None),
            (GPT_OSS, "attention_bias", None),
            (GPT_OSS, "num_experts_per_tok", 129),
            (MIXTRAL, "num_experts_per_tok", 9),
            (CONFIG, "num_experts_per_tok", 17),
        ],
    )
    def test_what_a_family_cannot_compute_is_refused_by_name(
        self, config: dict[str, Any], key: str, value: Any
    ) -> None:
        assert f"config.json: {key}={value}: " in refusal(config | {key: value})

    def test_the_most_that_a_family_computes_is_let_through(self) -> None:
        most = {"topk_group": 8, "num_experts_per_tok": 256, "first_k_dense_replace": 60}

        arch = architecture_from_config(DEEPSEEK | most | {"rope_interleave": True}, "c")

        assert (arch.experts_per_token, arch.expert_layers) == (256, (60,))

    @pytest.mark.parametrize("block", [None, [128], [128, 0], [128, 128.0]])
    def test_a_block_of_fp8_scales_must_have_two_sides(self, block: Any) -> None:
        stored = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": block}

        message = refusal(DEEPSEEK | {"quantization_config": stored})

        assert f"quantization_config: weight_block_size={block}: must be two" in message

    def test_the_same_model_in_another_format_has_the_same_architecture(self) -> None:
        plain = architecture_from_config(DEEPSEEK | {"quantization_config": None}, "c")
        stored = architecture_from_config(DEEPSEEK, "c")

        assert (plain.fp8_block, stored.fp8_block) == (None, (128, 128))
        assert plain == stored


class TestFile:
    def test_the_bundled_model_is_read(self) -> None:
        arch = read_architecture(SMALL_MOE_DIR)

        assert (arch.layers, arch.hidden, arch.experts, arch.experts_per_token) == (4, 112, 144, 8)
        assert (arch.heads, arch.kv_heads, arch.head_dim, arch.vocab) == (8, 4, 16, 1024)
        assert arch.rope.theta == 1e6

    @pytest.mark.parametrize("directory", ["nowhere", "."])
    def test_a_directory_without_a_config_is_named(self, directory: str, tmp_path: Path) -> None:
        path = tmp_path / directory

        with pytest.raises(CheckpointError) as caught:
            read_architecture(path)

        assert str(caught.value) == f"{path}: not a checkpoint directory, no config.json"

    @pytest.mark.parametrize("text", ['{"architectures": [', "", "\x00"])
    def test_a_config_that_is_no_json_is_named(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text)

        with pytest.raises(CheckpointError, match="cannot be read as JSON") as caught:
            read_architecture(tmp_path)

        assert str(tmp_path / "config.json") in str(caught.value)

    @pytest.mark.parametrize("value", [[], 7, "text"])
    def test_a_config_that_is_no_object_is_named(self, value: Any, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(value))

        with pytest.raises(CheckpointError) as caught:
            read_architecture(tmp_path)

        assert str(tmp_path / "config.json") in str(caught.value)
