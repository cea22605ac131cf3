"""Planned requests, and their sessions.

A session is one request, a conversation of several turns, or an agent's dependent calls. The same
seed makes the same sessions in any process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

Prompt = str | tuple[int, ...]
"""A text, or token ids."""

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A piece of a prompt with its role.

    `reply_of` is the position in the session of the call that this is the reply to; `content` is
    then the planned reply, which a run may replace by the server's.
    """

    role: Role
    content: Prompt
    reply_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and the number of tokens to generate.

    `request_id` is unique in its traffic class, `turn` its place in its session. `input_tokens` is
    the whole prompt by the server's count, chat template included. `output_schema` is a JSON schema
    for the reply. `keep_reply` keeps the reply's text, and token ids where given. Raises ValueError
    for a length below 1, no message, or contents that are not all texts or all token ids.
    """

    request_id: int
    traffic_class: str
    session_id: int
    turn: int
    messages: tuple[Message, ...]
    input_tokens: int
    output_tokens: int
    output_schema: Mapping[str, Any] | None = None
    keep_reply: bool = False

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"a request has tokens: {self.input_tokens}, {self.output_tokens}")
        if not self.messages:
            raise ValueError("a request has a message")
        if len({isinstance(message.content, str) for message in self.messages}) != 1:
            raise ValueError("contents are all texts or all token ids")

    @property
    def prompt(self) -> Prompt:
        """All contents, one after another."""
        if len(self.messages) == 1:
            return self.messages[0].content
        contents = [message.content for message in self.messages]
        if isinstance(contents[0], str):
            return "".join(str(content) for content in contents)
        return tuple(chain.from_iterable(contents))  # type: ignore[arg-type]  # all are ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request of a session, and its dependencies.

    It is due `think_ns` (of its class's time) after the end of the last call at the positions
    `after`; without any, when the session is due.
    """

    request: Request
    after: tuple[int, ...] = ()
    think_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Calls, each after all its dependencies.

    Raises ValueError for another order, and for no call.
    """

    session_id: int
    calls: tuple[Call, ...]

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("a session has a call")
        for position, call in enumerate(self.calls):
            if any(not 0 <= other < position for other in call.after):
                raise ValueError(f"call {position} waits for {call.after}")
