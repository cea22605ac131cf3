"""Parses the event stream of a completion or chat. Pure: no socket, no clock.

Format: server-sent events (WHATWG HTML, section 9.2), each one `data:` line of JSON, the last
`[DONE]`. Each byte is looked at and each event parsed once, typed: at high rates this is the load
generator's own cost.
"""

from typing import Final

import msgspec

from loadgen.clients.server_json import UNREADABLE, TokenCount, TokenId, error_message

LINE_BYTES_MAX: Final = 1 << 20  # an event is a few hundred bytes; more is no event stream
# *Assumed*: far more than what is asked for, which a server may exceed that knows no max_tokens or
# was told another; what a reply takes of memory ends here.
CHUNKS_BEYOND_MAX: Final = 1 << 16
MEAN_EVENT_BYTES_MAX: Final = 1 << 12


class _Delta(msgspec.Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: TokenCount | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: TokenCount
    completion_tokens: TokenCount = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_DECODE: Final = msgspec.json.Decoder(_Chunk).decode


class ReplyStream:
    """One reply, fed as its bytes arrive.

    Counts are the usage's; vLLM has `cached_tokens` with --enable-prompt-tokens-details only.
    `chunk_ns` grows by the given time for every event with generated tokens: with text, a chat's
    reasoning or tool calls, or with empty text where a token's bytes are held back; not for the
    event that opens a chat with the assistant's role alone. `complete` turns true at `[DONE]`.
    `error` is set, and the rest ignored, at an unreadable event, a reported failure, or a reply far
    longer than `asked_tokens`. `keep` keeps the text (reasoning before content) and token ids.
    """

    __slots__ = (
        "_bare_finish",
        "_bytes_left",
        "_chunks_max",
        "_ids",
        "_rest",
        "_texts",
        "cached_tokens",
        "chunk_ns",
        "complete",
        "error",
        "input_tokens",
        "output_tokens",
    )

    def __init__(self, *, asked_tokens: int, keep: bool = False) -> None:
        self._chunks_max = asked_tokens + CHUNKS_BEYOND_MAX
        self._bytes_left = self._chunks_max * MEAN_EVENT_BYTES_MAX
        self.chunk_ns: list[int] = []
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.complete = False
        self.error: str | None = None
        self._texts: list[str] | None = [] if keep else None
        self._ids: list[int] = []
        self._rest = b""
        self._bare_finish = False

    @property
    def text(self) -> str | None:
        """The text so far; None unless kept."""
        return None if self._texts is None else "".join(self._texts)

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The reply's token ids, if kept and sent by the server."""
        return tuple(self._ids) or None

    def feed(self, data: bytes, at_ns: int) -> int:
        """Take in bytes that arrived at `at_ns`; returns the number of new chunks."""
        if self.error is not None:
            return 0
        before = len(self.chunk_ns)
        self._bytes_left -= len(data)
        if self._rest:
            data = self._rest + data
        lines = data.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line[:5] == b"data:":
                self._event(line[5:], at_ns)
        chunks = len(self.chunk_ns)
        if len(self._rest) > LINE_BYTES_MAX:
            self._give_up(f"a line of more than {LINE_BYTES_MAX:,} bytes")
        elif chunks > self._chunks_max or self._bytes_left < 0:
            self._give_up(f"far more than was asked for: {chunks:,} chunks, and no end")
        return chunks - before

    def _give_up(self, why: str) -> None:
        self.error = self.error or why
        self._rest = b""

    def _event(self, payload: bytes, at_ns: int) -> None:
        if self.complete or self.error is not None:
            return
        if len(payload) < 10 and payload.strip() == b"[DONE]":
            self.complete = True
            return
        try:
            chunk = _DECODE(payload)
        except UNREADABLE as error:
            self.error = f"an event that cannot be read: {error}"
            return
        if chunk.error is not None:
            self.error = error_message(payload)
            return
        if chunk.choices:
            self._choice(chunk.choices[0], at_ns)
        if chunk.usage is not None:
            self._usage(chunk.usage)

    def _choice(self, choice: _Choice, at_ns: int) -> None:
        text, delta = choice.text, choice.delta
        silent = not text
        if delta is not None:
            text = delta.content or delta.reasoning or delta.reasoning_content
            silent = not text and not delta.tool_calls
            if silent and delta.role is not None and choice.finish_reason is None:
                return  # the opening of a chat
        self.chunk_ns.append(at_ns)
        self._bare_finish = silent and choice.finish_reason is not None
        if self._texts is not None:
            self._texts.append(text or "")
            self._ids.extend(choice.token_ids or ())

    def _usage(self, usage: _Usage) -> None:
        self.input_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def finish(self) -> None:
        """Judge the last event; call once, after the last byte.

        Servers' last events differ: a token with incomplete text, or a mere end. An empty one
        counts as a token only if the server's own count leaves space for it.
        """
        counted = self.output_tokens
        if self._bare_finish and (counted is None or len(self.chunk_ns) > counted):
            self.chunk_ns.pop()
            self._bare_finish = False
        if self.error is None and not self.complete:
            self.error = "the stream ended before its [DONE]"
        elif self.error is None and not self.chunk_ns:
            self.error = "a reply without any generated text"
