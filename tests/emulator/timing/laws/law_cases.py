"""Shapes and silicon for tests of the laws."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from emulator.specs.chips import chip_by_name
from emulator.timing.laws.collective_law import CollectiveShape
from emulator.timing.laws.decode_attention_law import DecodeAttentionShape
from emulator.timing.laws.expert_law import ExpertShape
from emulator.timing.laws.prefill_attention_law import PrefillAttentionShape
from emulator.timing.laws.product_law import ProductShape
from emulator.timing.laws.silicon import Silicon
from emulator.timing.product_rate import ProductRate

SHAPES = {
    "GEMM": (
        ProductShape,
        {"rows": 16, "outputs": 4096, "inputs": 2048, "element_bytes": 1, "quantised": 1},
    ),
    "MLA decode": (
        DecodeAttentionShape,
        {
            "requests": 32,
            "context_tokens": 4096,
            "heads": 16,
            "kv_heads": 1,
            "token_bytes": 576,
            "width": 1088,
        },
    ),
    "GQA decode": (
        DecodeAttentionShape,
        {
            "requests": 32,
            "context_tokens": 4096,
            "heads": 32,
            "kv_heads": 8,
            "token_bytes": 512,
            "width": 256,
        },
    ),
    "MLA prefill": (
        PrefillAttentionShape,
        {
            "prompts": 2,
            "tokens": 2000,
            "heads": 16,
            "kv_heads": 16,
            "width": 320,
            "cache_bytes": 1,
            "window": np.inf,
        },
    ),
    "GQA prefill": (
        PrefillAttentionShape,
        {
            "prompts": 2,
            "tokens": 2000,
            "heads": 32,
            "kv_heads": 8,
            "width": 256,
            "cache_bytes": 2,
            "window": 512,
        },
    ),
    "MoE": (
        ExpertShape,
        {
            "tokens": 128,
            "chosen": 8,
            "experts": 256,
            "held": 32,
            "divided": 8,
            "hidden": 7168,
            "columns": 2048,
            "matrices": 3,
            "element_bytes": 1,
            "skewed": 0,
        },
    ),
    "collectives": (
        CollectiveShape,
        {"chips": 8, "payload_bytes": 1e6, "reduces_all": 1},
    ),
}
"""A shape of each family: its class, and plausible columns."""

GROWING = [
    *(("GEMM", name) for name in ("rows", "outputs", "inputs")),
    *(
        (family, name)
        for family in ("MLA decode", "GQA decode")
        for name in ("requests", "context_tokens", "token_bytes")
    ),
    *(("MLA prefill", name) for name in ("prompts", "tokens", "width", "cache_bytes")),
    *(("GQA prefill", name) for name in ("prompts", "tokens", "width", "window")),
    *(("MoE", name) for name in ("tokens", "hidden", "element_bytes")),
    ("collectives", "payload_bytes"),
]
"""Columns whose growth means more bytes, more flops, or both."""

chips = st.sampled_from(["h100", "h200", "b200", "l40s", "mi355x", "trainium3"])


def shape_of(family: str, **columns: Any) -> Any:
    """The family's shape with some other columns, arrays or numbers."""
    shape, usual = SHAPES[family]
    arrays = np.broadcast_arrays(*(np.asarray(v, float) for v in {**usual, **columns}.values()))
    return shape(**dict(zip({**usual, **columns}, arrays, strict=True)))


def silicon(chip: str = "h100", rate: ProductRate = ProductRate.PLAIN) -> Silicon:
    return Silicon.of(chip_by_name(chip), rate)
