"""Whole engines of a role that share a key, on chips in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from serving.engine.live_engine import LiveEngine
from tests.e2e.server_process import free_port
from tests.serving.plugin.core_engine import Engine

ASKED = {"do_remote_decode": True, "do_remote_prefill": False}
"""Of a prompt whose KV is for another engine."""

Make = Callable[..., Engine]


@contextmanager
def exchanging_engines(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[Make]:
    """Makes engines of a role; their ports are closed at the end."""
    made: list[Engine] = []
    key_file = directory / "kv.key"
    key_file.write_text("k" * 40)
    key_file.chmod(0o600)

    def engine(role: str, chips: int = 1, *, lease_s: float = 30.0, **settings: Any) -> Engine:
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free_port()))
        config = KVTransferConfig(
            kv_connector="NixlConnector",
            kv_role=role,
            kv_connector_extra_config={"kv_lease_duration": lease_s},
        )
        settings = {"kv_key_file": str(key_file)} | settings
        made.append(Engine(monkeypatch, chips, kv_transfer_config=config, **settings))
        return made[-1]

    yield engine
    for each in made:
        each.executor.shutdown()


def pushed_to(engine: Engine) -> dict[str, Any]:
    """Of a prompt whose KV goes to an engine as it is computed."""
    connector = engine.scheduler.get_kv_connector()
    host, port = connector._address
    config = engine.executor.vllm_config.kv_transfer_config
    assert config is not None
    return ASKED | {"push_to": {"host": host, "port": port, "engine_id": config.engine_id}}


def live(engine: Engine) -> LiveEngine:
    """The engine below its executor."""
    return engine.executor.live_engine()
