"""`kv_transfer_params` of a request, by which vLLM's NIXL connector has prefill and decode apart.

A router asks one engine for a token with `do_remote_decode`, and another one for the text with the
parameters of the first one's response, which have `do_remote_prefill`. A word of ours, `push_to`,
says with the first which engine the second is: KV then goes there while the prompt is computed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request

from emulator.specs.step import KvSource
from serving.plugin.requests import NotComputed

KEY: Final = "kv_transfer_params"
PUSH_TO: Final = "push_to"

_CHIPS_MAX: Final = 144
"""Of the largest UltraServer."""

_HOST_MAX: Final = 253
_OF_HOSTS: Final = ".-:_%"
"""What a host's name or address has beside letters and digits."""


_NAME_MAX: Final = 256

NAME: Final = f"at most {_NAME_MAX} printable characters"
"""What `is_name` asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    """Where the KV of a request's prompt is; a rank of `chips` computed it."""

    source: KvSource
    chips: int


def asks_to_hold(params: Mapping[str, Any] | None) -> bool:
    """Whether the KV of its prompt is for another engine."""
    return params is not None and bool(params.get("do_remote_decode"))


def push_target(params: Mapping[str, Any] | None, request_id: str) -> KvSource | None:
    """The engine that will decode a prompt, named by `request_id` here; None where it is not said.
    Raises NotComputed (HTTP 400).
    """
    target = None if params is None else params.get(PUSH_TO)
    if target is None or not asks_to_hold(params):
        return None
    if not isinstance(target, Mapping):
        raise _wrong(PUSH_TO, target, "an object: host, port and engine_id of the engine's KV port")
    named = {f"{PUSH_TO}.{name}": value for name, value in target.items()}
    host, port, engine_id = _address(named, f"{PUSH_TO}.")
    return KvSource(host=host, port=port, engine_id=engine_id, request_id=request_id)


def has_unseen_token(data: NewRequestData | EngineCoreRequest) -> bool:
    """Whether a request's one token is thrown away: the engine that reads its KV makes it again."""
    sampling = data.sampling_params
    if sampling is None or sampling.max_tokens != 1:
        return False
    params = (sampling.extra_args or {}).get(KEY)
    return isinstance(params, Mapping) and asks_to_hold(params)


def remote_prefill(params: Mapping[str, Any] | None) -> RemotePrefill | None:
    """Where a request's KV is; None where it computes its own. Raises NotComputed (HTTP 400)."""
    if not params or not params.get("do_remote_prefill"):
        return None
    if asks_to_hold(params):
        raise _wrong("do_remote_decode", True, "false beside do_remote_prefill")
    chips = params.get("tp_size", 1)
    if not (type(chips) is int and 1 <= chips <= _CHIPS_MAX):
        raise _wrong("tp_size", chips, f"1 to {_CHIPS_MAX}")
    host, port, engine_id = _address(params, "remote_")
    source = KvSource(
        host=host,
        port=port,
        engine_id=engine_id,
        request_id=_name(params, "remote_request_id"),
    )
    return RemotePrefill(source=source, chips=chips)


def _address(params: Mapping[str, Any], prefix: str) -> tuple[str, int, str]:
    """Host, port and id of an engine, by fields of this prefix."""
    port, host = params.get(f"{prefix}port"), _text(params, f"{prefix}host")
    if not (type(port) is int and 1 <= port <= 65535):
        raise _wrong(f"{prefix}port", port, "1 to 65535")
    if len(host) > _HOST_MAX or not all(each.isalnum() or each in _OF_HOSTS for each in host):
        raise _wrong(f"{prefix}host", host, "a host's name or address")
    return host, port, _name(params, f"{prefix}engine_id")


def held_elsewhere(request: Request) -> RemotePrefill | None:
    """Where a request's KV is; None too for parameters that were refused: vLLM lets the engine know
    of the end of such a request.
    """
    try:
        return remote_prefill(request.kv_transfer_params)
    except NotComputed:
        return None


def check_params(params: Any, role: str | None) -> None:
    """Refuse what an engine of vLLM's `role` does not do; raises NotComputed."""
    if params is None or role is None:
        return  # without a role, vLLM warns and computes all itself
    if not isinstance(params, Mapping):
        raise NotComputed(f"{KEY}: expected an object, not {params!r:.80}", parameter=KEY)
    remote = remote_prefill(params)
    if remote is not None and role == "kv_producer":
        raise _wrong("do_remote_prefill", True, "false: this engine computes prompts (kv_producer)")
    if asks_to_hold(params) and role == "kv_consumer":
        raise _wrong("do_remote_decode", True, "false: this engine decodes (kv_consumer)")
    push_target(params, "a request")


def is_name(text: str) -> bool:
    """Whether engines can name a request, or each other, so."""
    return 0 < len(text) <= _NAME_MAX and text.isprintable()


def prompt_digest(request: Request) -> bytes:
    """16 bytes by which two engines know that they mean the same prompt."""
    tokens = np.array(request.prompt_token_ids, dtype="<i8")
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise _wrong(name, value, "a text, as the prefilling engine's response has it")
    return value


def _name(params: Mapping[str, Any], name: str) -> str:
    value = _text(params, name)
    if not is_name(value):
        raise _wrong(name, value, NAME)
    return value


def _wrong(name: str, value: Any, expected: str) -> NotComputed:
    return NotComputed(
        f"{KEY}.{name}={value!r:.80}: expected {expected}", parameter=f"{KEY}.{name}"
    )
