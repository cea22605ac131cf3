"""vLLM's own configs of the bundled MoE on our platform, and KV pools; no engine."""

import functools
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from emulator.data import SMALL_MOE_DIR

BLOCK_TOKENS = 16


def engine_config(
    chips: int = 1,
    *,
    prefill_policy: str | None = "none",
    prefill_ranks: int | str = 0,
    **arguments: Any,
) -> VllmConfig:
    """A config like that of an engine on `chips`, with arguments of vLLM's EngineArgs."""
    given = {
        "model": str(SMALL_MOE_DIR),
        "max_model_len": 512,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 6,
        "block_size": BLOCK_TOKENS,
        "additional_config": {
            "ultraserve": {
                "chips": chips,
                "prefill_policy": prefill_policy,
                "prefill_ranks": prefill_ranks,
            }
        },
    }
    return EngineArgs(**(given | arguments)).create_engine_config()


def config_from_flags(*flags: str) -> VllmConfig:
    """A config from the engine's part of the command line of `vllm serve`."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = parser.parse_args(["--model", str(SMALL_MOE_DIR), *flags])
    return EngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)


def kv_pool(config: VllmConfig, blocks: int) -> KVCacheConfig:
    """A pool of `blocks` for one full-attention group, noted in `config`."""
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(
        block_size=config.cache_config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


@functools.cache
def block_hasher(block_tokens: int) -> Any:
    """The engine's hasher of requests' blocks."""
    init_none_hash(sha256)
    return get_request_block_hasher(block_tokens, sha256)
