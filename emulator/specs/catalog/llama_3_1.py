"""Llama 3.1 in its three sizes: the dimensions of their public config.json, as catalog data.

Dense models: every layer has one feed-forward network, and no router.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.model import ModelSpec

LLAMA_3_1_8B: Final = ModelSpec(
    name="llama-3.1-8b",
    layers=32,
    hidden=4_096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    dense_intermediate=14_336,
    vocab=128_256,
    max_context_tokens=131_072,
    tied_embeddings=False,
    query_key_norms=False,
    source="Hugging Face, meta-llama/Llama-3.1-8B, config.json (BF16 checkpoint)",
)

LLAMA_3_1_70B: Final = replace(
    LLAMA_3_1_8B,
    name="llama-3.1-70b",
    layers=80,
    hidden=8_192,
    heads=64,
    dense_intermediate=28_672,
    source="Hugging Face, meta-llama/Llama-3.1-70B, config.json (BF16 checkpoint)",
)

LLAMA_3_1_405B: Final = replace(
    LLAMA_3_1_8B,
    name="llama-3.1-405b",
    layers=126,
    hidden=16_384,
    heads=128,
    dense_intermediate=53_248,
    source="Hugging Face, meta-llama/Llama-3.1-405B, config.json (BF16 checkpoint)",
)
