"""What each replica of a service does: computes prompts, decodes, or both; and its flags for it.

Engines exchange KV as vLLM's do by its NIXL connector, each at a port of its own on loopback.
"""

import json
from collections.abc import Sequence
from enum import Enum
from typing import Final

from emulator.errors import ConfigError
from serving.policy.rank_roles import RankRole

KV_FLAG: Final = "--kv-transfer-config"
KV_KEY_FLAG: Final = "--kv-key-file"
KV_HOST_VARIABLE: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
KV_PORT_VARIABLE: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"

_FIELD: Final = "replica_roles"
_KV_ROLES: Final = {
    RankRole.PREFILL: "kv_producer",
    RankRole.DECODE: "kv_consumer",
    RankRole.BOTH: "kv_both",
}


class RequestPart(Enum):
    """What a replica is asked for of a request."""

    WHOLE = "whole"
    PROMPT = "prompt"
    REST = "rest"

    def is_of(self, role: RankRole | None) -> bool:
        """Whether replicas of a role do it."""
        return role is not (RankRole.DECODE if self is RequestPart.PROMPT else RankRole.PREFILL)


def parse_roles(text: str | None, replicas: int) -> tuple[RankRole, ...] | None:
    """Of so many replicas, in their order, from `prefill=1,decode=2`; None: each does all alone.

    Raises ConfigError for words or numbers that do not fit.
    """
    if text is None:
        return None
    roles: list[RankRole] = []
    for part in text.split(","):
        name, _, count = part.strip().partition("=")
        if name not in tuple(RankRole) or not (count.isascii() and count.isdecimal()):
            expected = "replicas of each role, as in prefill=1,decode=2 (prefill, decode, both)"
            raise ConfigError(_FIELD, text, expected)
        roles += [RankRole(name)] * int(count)
    if len(roles) != replicas:
        raise ConfigError(_FIELD, text, f"{replicas} replicas in all, as --replicas says")
    if (RankRole.PREFILL in roles) != (RankRole.DECODE in roles or RankRole.BOTH in roles):
        raise ConfigError(_FIELD, text, "one that prefills, and one that decodes (decode, both)")
    return tuple(roles)


def role_words(role: RankRole, kv_key_file: str) -> Sequence[str]:
    """Flags of a replica's process."""
    config = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[role]}
    return KV_FLAG, json.dumps(config), KV_KEY_FLAG, kv_key_file
