"""A request whose prompt one replica computes, and another one decodes: vLLM's proxy pattern.

The first one is asked for a token, and to hold its KV; its answer says where that is, and goes with
the request to the second. Which one this is the first knows too, so that each step's KV goes there
while the prompt is computed. Pure.
"""

from typing import Any, Final

import msgspec

from serving.server.gateway.json_object import json_object
from serving.server.gateway.kv_params import KEY as _PARAMS

_PATHS: Final = frozenset({"/v1/completions", "/v1/chat/completions"})
_CHAT_TOKENS: Final = "max_completion_tokens"
_NO_STREAM: Final = ("stream", "stream_options", "min_tokens")
_OF_PROMPT: Final = ("echo", "prompt_logprobs", "use_beam_search")
"""A request with one of these is about its prompt, and stays on one replica."""


def prompt_alone(path: str, body: bytes) -> bytes | None:
    """The body that has a replica compute a request's prompt; None for one that stays whole."""
    asked = json_object(body) if path in _PATHS else None
    if asked is None or asked.get("n") not in (None, 1) or _is_about_prompt(asked):
        return None
    prompt = asked.get("prompt", "")
    is_one = isinstance(prompt, str) or _is_of(prompt, int)
    if not is_one or not all(_is_count(asked.get(name)) for name in ("max_tokens", _CHAT_TOKENS)):
        return None
    first = {name: value for name, value in asked.items() if name not in _NO_STREAM}
    first["max_tokens"] = 1
    if _CHAT_TOKENS in first:
        first[_CHAT_TOKENS] = 1
    return msgspec.json.encode(first | {_PARAMS: {"do_remote_decode": True}})


def prompt_for(prompt: bytes, target: dict[str, Any] | None) -> bytes:
    """The body of `prompt_alone` whose KV goes to the engine `target` as it is computed, if any."""
    if target is None:
        return prompt
    return with_kv(prompt, {"do_remote_decode": True, "push_to": target})


def held_kv(answer: bytes) -> dict[str, Any]:
    """Where a replica's answer says that the prompt's KV is; empty where it holds none."""
    params = (json_object(answer) or {}).get(_PARAMS)
    return params if isinstance(params, dict) else {}


def with_kv(body: bytes, held: dict[str, Any]) -> bytes:
    """The body for the replica that decodes."""
    return msgspec.json.encode((json_object(body) or {}) | {_PARAMS: held}) if held else body


def _is_about_prompt(asked: dict[str, Any]) -> bool:
    given = (asked.get(name) for name in _OF_PROMPT)
    return any(value is not None and value is not False for value in given)


def _is_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(each) is kind for each in values)


def _is_count(tokens: Any) -> bool:
    """Whether a limit of tokens is one that a replica takes."""
    return tokens is None or (type(tokens) is int and tokens > 0)
