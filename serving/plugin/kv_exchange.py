"""The exchange of KV with other engines that vLLM's `--kv-transfer-config` asks for.

Its connector, role and `kv_lease_duration`, and the address in `VLLM_NIXL_SIDE_CHANNEL_HOST` and
`_PORT`, are those of vLLM's NIXL connector; what crosses the wire is the emulator's own.
"""

import os
from typing import TYPE_CHECKING, Any, Final

import psutil
from vllm import envs

from emulator.compute.checkpoint import check_weights
from emulator.errors import ConfigError
from serving.access.kv_key import read_kv_key
from serving.engine.deployment import Deployment
from serving.engine.remote_kv.arrivals import kv_arrivals_of
from serving.engine.remote_kv.layout import KvLayout
from serving.engine.remote_kv.messages import EngineFacts
from serving.engine.remote_kv.offers import kv_offers_of
from serving.engine.remote_kv.remote_kv import KvExchangeSettings, RemoteKv
from serving.policy.kv_in_flight import KV_IN_FLIGHT_BYTES_MAX
from serving.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_LEASE_S: Final = 30.0
"""As in vLLM; of emulated time."""

_COPIES_SHARE: Final = 0.1
"""Assumed: share of the host's memory, beside chips and weights, for copies of KV that is held for
other engines, and as much for what comes of them, for what is pushed, and for what is pushed here;
those of one whole context in any case.
"""


def exchange_settings(vllm_config: "VllmConfig") -> KvExchangeSettings:
    """What the exchange was asked for; raises ConfigError."""
    config = vllm_config.kv_transfer_config
    assert config is not None
    lease_s: Any = config.get_from_extra_config("kv_lease_duration", _LEASE_S)
    if type(lease_s) not in (int, float) or not 0 < lease_s < float("inf"):
        raise ConfigError("kv_lease_duration", lease_s, "emulated seconds above 0")
    if config.get_from_extra_config("bidirectional_kv_xfer", False):
        expected = "false: KV goes from engines that prefill to engines that decode"
        raise ConfigError("bidirectional_kv_xfer", True, expected)
    host, port = envs.VLLM_NIXL_SIDE_CHANNEL_HOST, envs.VLLM_NIXL_SIDE_CHANNEL_PORT
    if not 1 <= port <= 65535:
        raise ConfigError("VLLM_NIXL_SIDE_CHANNEL_PORT", port, "1 to 65535")
    settings = Settings.from_additional_config(vllm_config.additional_config)
    return KvExchangeSettings(
        key=read_kv_key(settings.kv_key_file, host=host, environment=os.environ),
        lease_s=lease_s,
    )


def start_exchange(vllm_config: "VllmConfig", deployment: Deployment) -> RemoteKv | None:
    """Open the engine's KV port, if it has one; raises ConfigError."""
    if vllm_config.kv_transfer_config is None:
        return None
    layout = None
    if deployment.settings.computes:
        layout = KvLayout.of(check_weights(deployment.weights_dir))
    config, settings = vllm_config.kv_transfer_config, exchange_settings(vllm_config)
    facts = EngineFacts(
        engine_id=config.engine_id,
        host=envs.VLLM_NIXL_SIDE_CHANNEL_HOST,
        port=envs.VLLM_NIXL_SIDE_CHANNEL_PORT,
        system=deployment.system.name,
        model=deployment.time_model.name,
        lease_s=settings.lease_s,
        token_bytes=deployment.time_model.kv_bytes_per_token,
        block_tokens=vllm_config.cache_config.block_size,
        tp=deployment.partition.tp,
        layout=layout,
    )
    return RemoteKv(
        settings,
        facts,
        kv_offers_of(vllm_config.instance_id),
        arrivals=kv_arrivals_of(vllm_config.instance_id),
        buffer_bytes=KV_IN_FLIGHT_BYTES_MAX,
        copies_bytes_max=_copies_bytes_max(vllm_config, deployment, layout),
    )


def _copies_bytes_max(
    vllm_config: "VllmConfig", deployment: Deployment, layout: KvLayout | None
) -> int:
    if layout is None:
        return 0
    block_tokens: int = vllm_config.cache_config.block_size
    context_tokens: int = vllm_config.model_config.max_model_len
    context_blocks = -(-context_tokens // block_tokens)
    left_bytes = psutil.virtual_memory().available - deployment.host_need.total_bytes
    return max(context_blocks * layout.block_bytes(block_tokens), round(_COPIES_SHARE * left_bytes))
