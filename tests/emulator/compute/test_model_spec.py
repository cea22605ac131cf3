"""The timed model of a checkpoint, from public config.json files: the catalog's own dimensions."""

from dataclasses import replace
from typing import Any

import pytest

from emulator.compute.config_reader import ConfigReader
from emulator.compute.model_spec import spec_from_config
from emulator.errors import CheckpointError
from emulator.specs.catalog.deepseek_v3 import DEEPSEEK_R1, KIMI_K2
from emulator.specs.catalog.gpt_oss import GPT_OSS_120B
from emulator.specs.catalog.llama_3_1 import LLAMA_3_1_8B
from emulator.specs.catalog.mixtral_8x7b import MIXTRAL_8X7B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.model import ModelSpec

QWEN: dict[str, Any] = {
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
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
KIMI: dict[str, Any] = DEEPSEEK | {
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "model_type": "kimi_k2",
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "vocab_size": 163840,
}


def read(config: dict[str, Any]) -> ModelSpec:
    return spec_from_config("m", ConfigReader(config, "a test"))


@pytest.mark.parametrize(
    ("config", "catalog"),
    [
        (QWEN, QWEN3_30B_A3B),
        (LLAMA, LLAMA_3_1_8B),
        (MIXTRAL, MIXTRAL_8X7B),
        (GPT_OSS, GPT_OSS_120B),
        (DEEPSEEK, DEEPSEEK_R1),
        (KIMI, KIMI_K2),
    ],
)
def test_the_catalogs_dimensions_are_those_of_the_public_config(
    config: dict[str, Any], catalog: ModelSpec
) -> None:
    assert read(config) == replace(catalog, name="m", source="a test")


def test_dense_layers_are_counted_wherever_they_are() -> None:
    model = read(QWEN | {"mlp_only_layers": [1, 7], "num_hidden_layers": 12})

    assert (model.dense_layers, model.moe_layers, model.dense_intermediate) == (2, 10, 6144)


def test_windows_must_come_in_an_order_that_is_timed() -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]

    with pytest.raises(CheckpointError, match="layer_types="):
        read(GPT_OSS | {"layer_types": kinds, "num_hidden_layers": 4})


def test_a_float32_checkpoint_has_four_byte_weights_and_keys() -> None:
    model = read({**QWEN, "torch_dtype": "float32"})

    assert (model.weight_bytes_per_param, model.kv_bytes_per_element) == (4, 4)
    assert model.dtype == "fp32"


def test_the_newer_spelling_of_dtype_wins_over_the_older_and_none_means_bf16() -> None:
    silent = {key: value for key, value in QWEN.items() if key != "torch_dtype"}

    assert read({**QWEN, "dtype": "float32"}).dtype == "fp32"
    assert read(silent).dtype == "bf16"


def test_a_missing_head_dim_is_hidden_over_heads() -> None:
    assert read({**QWEN, "head_dim": None}).head_dim == 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("use_sliding_window", True),
        ("num_experts", 0),
        ("hidden_size", "2048"),
        ("hidden_size", 0),
        ("head_dim", 12.5),
        ("num_key_value_heads", 5),
        ("dtype", "float8_e4m3fn"),
    ],
)
def test_a_config_that_cannot_be_timed_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{key}="):
        read({**QWEN, key: value})
