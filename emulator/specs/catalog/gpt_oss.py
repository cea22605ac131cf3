"""gpt-oss in its two sizes: the dimensions of their public config.json, as catalog data.

Every second layer, from the first, attends only to the last 128 tokens. Experts are stored in
MXFP4, their biases and all else in BF16.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat

GPT_OSS_120B: Final = ModelSpec(
    name="gpt-oss-120b",
    layers=36,
    hidden=2_880,
    heads=64,
    kv_heads=8,
    head_dim=64,
    experts=128,
    experts_per_token=4,
    expert_intermediate=2_880,
    vocab=201_088,
    max_context_tokens=131_072,
    tied_embeddings=False,
    query_key_norms=False,
    attention_bias=True,
    sinks=True,
    router_bias=WeightFormat.BF16,
    expert_bias=True,
    window_tokens=128,
    full_attention_every=2,
    stored_expert_format=WeightFormat.MXFP4,
    source="Hugging Face, openai/gpt-oss-120b, config.json (MXFP4 and BF16 checkpoint)",
)

GPT_OSS_20B: Final = replace(
    GPT_OSS_120B,
    name="gpt-oss-20b",
    layers=24,
    experts=32,
    source="Hugging Face, openai/gpt-oss-20b, config.json (MXFP4 and BF16 checkpoint)",
)
