"""vLLM's config and KV pool for schedulers without an engine, weights or chips.

vLLM needs a checkpoint: the bundled small model's, with the timed model's context, all that
schedulers know of a model. The config goes through the platform, as the server's does.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from vllm.config import VllmConfig
from vllm.config.logging import LoggingConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from emulator.data import SMALL_MOE_DIR
from emulator.specs.partition import Partition
from serving.settings import KEY, Settings
from serving.traffic.engine_limits import EngineLimits


def virtual_engine_config(
    partition: Partition, limits: EngineLimits, *, max_model_len: int, kv_blocks: int
) -> VllmConfig:
    """The config of an engine on `partition`, with `kv_blocks` a rank.

    Raises UltraServeError for settings that the platform refuses.
    """
    with _only_errors():
        config = EngineArgs(
            model=str(SMALL_MOE_DIR),
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            block_size=limits.block_tokens,
            enable_prefix_caching=limits.prefix_caching,
            scheduling_policy=limits.scheduling_policy,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            dtype="float32",
            logging_config=LoggingConfig(configure_logging=False, pylogging_config_file=None),
            additional_config={KEY: {"chips": 1}},
        ).create_engine_config()
    # The platform looked at the small model on one chip. That the timed model fits on its partition
    # is the cost model's and its caller's to know; the scheduler asks for ranks and a policy.
    config.additional_config = Settings(
        chips=partition.chips, tp=partition.tp, prefill_policy=limits.prefill_policy
    ).to_additional_config()
    config.model_config.max_model_len = max_model_len
    config.cache_config.num_gpu_blocks = kv_blocks
    return config


def virtual_kv_pool(config: VllmConfig) -> KVCacheConfig:
    """Blocks of one full-attention group; schedulers only count them."""
    blocks = config.cache_config.num_gpu_blocks
    assert blocks is not None
    spec = FullAttentionSpec(
        block_size=config.cache_config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


@contextmanager
def _only_errors() -> Iterator[None]:
    """Keep vLLM's log of the stand-in's config off stdout; its warnings concern workers."""
    logger = logging.getLogger("vllm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
