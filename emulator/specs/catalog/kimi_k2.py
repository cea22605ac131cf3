"""Kimi-K2: the dimensions of its public config.json, as catalog data.

DeepSeek-V3's architecture with half the heads, 384 experts and one dense layer.
"""

from typing import Final

from emulator.specs.latent_attention import LatentAttention
from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat

KIMI_K2: Final = ModelSpec(
    name="kimi-k2",
    layers=61,
    hidden=7_168,
    heads=64,
    kv_heads=64,
    head_dim=128,
    experts=384,
    experts_per_token=8,
    expert_intermediate=2_048,
    first_dense_layers=1,
    dense_intermediate=18_432,
    shared_experts=1,
    vocab=163_840,
    max_context_tokens=131_072,
    tied_embeddings=False,
    query_key_norms=False,
    router_bias=WeightFormat.FP32,
    latent=LatentAttention(query_rank=1_536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    stored_projection_format=WeightFormat.FP8_BLOCK128,
    stored_expert_format=WeightFormat.FP8_BLOCK128,
    source="Hugging Face, moonshotai/Kimi-K2-Instruct, config.json (FP8 checkpoint)",
)
