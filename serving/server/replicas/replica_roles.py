"""What each replica of a service does: computes prompts, decodes, or both; and its flags for it.

Engines exchange KV as vLLM's do by its NIXL connector, each at a port of its own on loopback. All
are started for both ways, so that a role is the router's choice alone, and may change.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from emulator.errors import ConfigError
from serving.policy.rank_roles import AUTO, RankRole, Roles, first_roles

KV_FLAG: Final = "--kv-transfer-config"
KV_KEY_FLAG: Final = "--kv-key-file"
KV_HOST_VARIABLE: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
KV_PORT_VARIABLE: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"

_FIELD: Final = "replica_roles"
_KV_CONFIG: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


class RequestPart(Enum):
    """What a replica is asked for of a request."""

    WHOLE = "whole"
    PROMPT = "prompt"
    REST = "rest"

    def is_of(self, role: RankRole | None) -> bool:
        """Whether replicas of a role do it."""
        return role is not (RankRole.DECODE if self is RequestPart.PROMPT else RankRole.PREFILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoles:
    """Of replicas, in their order, at the start; `follow_load`: a policy changes them."""

    first: Roles
    follow_load: bool = False


def parse_roles(text: str | None, replicas: int) -> ReplicaRoles | None:
    """Of so many replicas, from `prefill=1,decode=2`, with `auto` before it or alone where they
    follow the load; None: each does all alone.

    Raises ConfigError for words or numbers that do not fit.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if follow_load := parts[0] == AUTO:
        del parts[0]
    roles = _counted(text, parts) if parts else list(first_roles(AUTO, replicas))
    if len(roles) != replicas:
        raise ConfigError(_FIELD, text, f"{replicas} replicas in all, as --replicas says")
    if (RankRole.PREFILL in roles) != (RankRole.DECODE in roles or RankRole.BOTH in roles):
        raise ConfigError(_FIELD, text, "one that prefills, and one that decodes (decode, both)")
    if follow_load and RankRole.BOTH in roles:
        raise ConfigError(_FIELD, text, f"prefill and decode alone with {AUTO}")
    return ReplicaRoles(first=tuple(roles), follow_load=follow_load)


def _counted(text: str, parts: Sequence[str]) -> list[RankRole]:
    roles: list[RankRole] = []
    for part in parts:
        name, _, count = part.partition("=")
        if name not in tuple(RankRole) or not (count.isascii() and count.isdecimal()):
            expected = "replicas of each role, as in prefill=1,decode=2 (prefill, decode, both)"
            raise ConfigError(_FIELD, text, f"{expected}, after {AUTO} or without")
        roles += [RankRole(name)] * int(count)
    return roles


def engine_id(number: int) -> str:
    """By which engines know a replica's; the address, too, is checked, and is new with a start."""
    return f"replica-{number}"


def exchange_words(kv_key_file: str, number: int) -> Sequence[str]:
    """Flags of a replica's process."""
    config = _KV_CONFIG | {"engine_id": engine_id(number)}
    return KV_FLAG, json.dumps(config), KV_KEY_FLAG, kv_key_file
