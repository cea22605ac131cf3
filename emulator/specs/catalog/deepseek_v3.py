"""DeepSeek-V3, DeepSeek-R1, Kimi-K2: the dimensions of their public config.json, as catalog data.

One architecture; Kimi-K2 has half the heads, 384 experts and one dense layer. Matrices are in FP8,
embedding, LM head, norms and router in BF16, the router's correction bias in FP32. The
multi-token-prediction module (14 billion parameters beside DeepSeek's 671) is left out, as without
drafting.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.latent_attention import LatentAttention
from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat

DEEPSEEK_V3: Final = ModelSpec(
    name="deepseek-v3",
    layers=61,
    hidden=7_168,
    heads=128,
    kv_heads=128,
    head_dim=128,
    experts=256,
    experts_per_token=8,
    expert_intermediate=2_048,
    first_dense_layers=3,
    dense_intermediate=18_432,
    shared_experts=1,
    vocab=129_280,
    max_context_tokens=163_840,
    tied_embeddings=False,
    query_key_norms=False,
    router_bias=WeightFormat.FP32,
    latent=LatentAttention(query_rank=1_536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    stored_projection_format=WeightFormat.FP8_BLOCK128,
    stored_expert_format=WeightFormat.FP8_BLOCK128,
    source="Hugging Face, deepseek-ai/DeepSeek-V3, config.json (FP8 checkpoint, without MTP)",
)

DEEPSEEK_R1: Final = replace(
    DEEPSEEK_V3,
    name="deepseek-r1",
    source="Hugging Face, deepseek-ai/DeepSeek-R1, config.json (FP8 checkpoint, without MTP)",
)

KIMI_K2: Final = replace(
    DEEPSEEK_V3,
    name="kimi-k2",
    heads=64,
    kv_heads=64,
    experts=384,
    first_dense_layers=1,
    vocab=163_840,
    max_context_tokens=131_072,
    source="Hugging Face, moonshotai/Kimi-K2-Instruct, config.json (FP8 checkpoint)",
)
