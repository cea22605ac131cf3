"""A request's `kv_transfer_params` at a gateway: whether they are taken, and what they save."""

from enum import Enum
from typing import Final

from serving.server.gateway.json_object import json_object

KEY: Final = "kv_transfer_params"


class KvParams(Enum):
    """What becomes of them behind a gateway."""

    IGNORED = "ignored"  # the engine exchanges no KV
    HEARD = "heard"
    REFUSED = "refused"  # the service's router alone sets them


def is_prefilled(params: bytes | str) -> bool:
    """Whether they say that another engine has the KV of the prompt."""
    return bool((json_object(params) or {}).get("do_remote_prefill"))
