"""A request's body as a replica gets it: with what makes its stream repeatable and counted.

A stream that has begun can go on elsewhere where its text is decided by the request: greedy, or
with a seed. A request without one gets a seed, which the client never sees. A seed would make
several prompts' answers alike, so a request with several and none is not repeatable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from serving.server.gateway.json_object import json_object
from serving.server.replicas.completion_stream import CompletionStream

_PATHS: Final = frozenset({"/v1/completions", "/v1/chat/completions"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedBody:
    """`stream` is set for a completion or chat that is streamed; `repeatable` says of its text that
    any replica makes the same.
    """

    body: bytes
    stream: CompletionStream | None = None
    repeatable: bool = False


def forwarded_body(path: str, body: bytes, draw_seed: Callable[[], int]) -> ForwardedBody:
    """The body for a replica; `draw_seed` draws a seed."""
    if path not in _PATHS:
        return ForwardedBody(body=body)
    asked = json_object(body)
    if asked is None or asked.get("stream") is not True:
        return ForwardedBody(body=body)  # the replica says what is wrong with it
    options = asked.get("stream_options") or {}
    if not isinstance(options, dict):
        return ForwardedBody(body=body)
    repeatable = asked.get("seed") is not None or asked.get("temperature") == 0
    if not repeatable and not _has_many_prompts(asked):
        asked["seed"], repeatable = draw_seed(), True
    shows_usage = options.get("include_usage") is True
    asked["stream_options"] = {**options, "include_usage": True}
    if not shows_usage:
        asked["stream_options"].pop("continuous_usage_stats", None)
    return ForwardedBody(
        body=msgspec.json.encode(asked),
        stream=CompletionStream(shows_usage=shows_usage),
        repeatable=repeatable,
    )


def _has_many_prompts(asked: dict[str, Any]) -> bool:
    prompt = asked.get("prompt")
    if not isinstance(prompt, list) or len(prompt) < 2:
        return False
    return not all(isinstance(each, int) for each in prompt)
