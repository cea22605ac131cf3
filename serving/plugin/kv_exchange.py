"""The exchange of KV with other engines that vLLM's `--kv-transfer-config` asks for.

Its connector, role and `kv_lease_duration`, and the address in `VLLM_NIXL_SIDE_CHANNEL_HOST` and
`_PORT`, are those of vLLM's NIXL connector; what crosses the wire is the emulator's own.
"""

import os
from typing import TYPE_CHECKING, Any, Final

from vllm import envs

from emulator.errors import ConfigError
from serving.access.kv_key import read_kv_key
from serving.engine.deployment import Deployment
from serving.engine.remote_kv.messages import EngineFacts
from serving.engine.remote_kv.offers import kv_offers_of
from serving.engine.remote_kv.remote_kv import KvExchangeSettings, RemoteKv
from serving.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_LEASE_S: Final = 30.0
"""As in vLLM; of emulated time."""


def exchange_settings(vllm_config: "VllmConfig") -> KvExchangeSettings:
    """What the exchange was asked for; raises ConfigError."""
    config = vllm_config.kv_transfer_config
    assert config is not None
    assert config.engine_id is not None, "vLLM draws one"
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
        engine_id=config.engine_id,
        host=host,
        port=port,
        key=read_kv_key(settings.kv_key_file, host=host, environment=os.environ),
        lease_s=lease_s,
    )


def start_exchange(vllm_config: "VllmConfig", deployment: Deployment) -> RemoteKv | None:
    """Open the engine's KV port, if it has one; raises ConfigError."""
    if vllm_config.kv_transfer_config is None:
        return None
    settings = exchange_settings(vllm_config)
    facts = EngineFacts(
        engine_id=settings.engine_id,
        system=deployment.system.name,
        model=deployment.time_model.name,
        token_bytes=deployment.time_model.kv_bytes_per_token,
        block_tokens=vllm_config.cache_config.block_size,
        tp=deployment.partition.tp,
        computes=deployment.settings.computes,
    )
    return RemoteKv(settings, facts, kv_offers_of(vllm_config.instance_id))
