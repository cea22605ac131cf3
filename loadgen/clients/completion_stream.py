"""Reads the event stream of `/v1/completions` from bytes: no socket, no clock, so it can be tested.

Format: server-sent events (WHATWG HTML, section 9.2), each with one `data:` line of JSON, the last
of them `[DONE]`. Each byte is looked at once and each event parsed once, by a typed parser: at high
rates the load generator's own cost is in here.
"""

from typing import Final

import msgspec

LINE_BYTES_MAX: Final = 1 << 20  # an event is a few hundred bytes; more is no event stream
MESSAGE_CHARACTERS_MAX: Final = 200


class _Choice(msgspec.Struct, gc=False):
    text: str | None = ""
    finish_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int = 0


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_DECODE: Final = msgspec.json.Decoder(_Chunk).decode


class CompletionStream:
    """One reply, fed as its bytes arrive.

    `chunk_ns` grows by the given time for every event with generated text. `complete` turns true
    at `[DONE]`; `error` is set, and the rest ignored, at an event that cannot be read or that
    reports a failure.
    """

    def __init__(self) -> None:
        self.chunk_ns: list[int] = []
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.complete = False
        self.error: str | None = None
        self._rest = b""
        self._last_is_bare_finish = False

    def feed(self, data: bytes, at_ns: int) -> None:
        """Take in the next bytes, which arrived at `at_ns`."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:], at_ns)
        if len(self._rest) > LINE_BYTES_MAX:
            self.error = self.error or f"a line of more than {LINE_BYTES_MAX:,} bytes"
            self._rest = b""

    def _event(self, payload: bytes, at_ns: int) -> None:
        if self.complete or self.error is not None:
            return
        if len(payload) < 10 and payload.strip() == b"[DONE]":
            self.complete = True
            return
        try:
            chunk = _DECODE(payload)
        except msgspec.MsgspecError as error:
            self.error = f"an event that cannot be read: {error}"
            return
        if chunk.error is not None:
            self.error = error_message(payload)
            return
        if chunk.choices:
            self.chunk_ns.append(at_ns)
            choice = chunk.choices[0]
            self._last_is_bare_finish = not choice.text and choice.finish_reason is not None
        if chunk.usage is not None:
            self.input_tokens = chunk.usage.prompt_tokens
            self.output_tokens = chunk.usage.completion_tokens

    def finish(self) -> None:
        """Settle what only the end can tell; call once, when no more bytes come.

        Servers differ in their last event: with a final token whose text is still incomplete, or
        as a mere full stop. An empty one is taken for a token only if the server's own count
        leaves room for it.
        """
        counted = self.output_tokens
        if self._last_is_bare_finish and (counted is None or len(self.chunk_ns) > counted):
            self.chunk_ns.pop()
            self._last_is_bare_finish = False
        if self.error is None and not self.complete:
            self.error = "the stream ended before its [DONE]"
        elif self.error is None and not self.chunk_ns:
            self.error = "a reply without any generated text"


def error_message(body: bytes) -> str:
    """Return the words of an error body: its `error.message` if it has one, else its beginning."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        decoded = None
    if isinstance(decoded, dict):
        inner = decoded.get("error", decoded)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
        text = str(found)
    else:
        text = body.decode(errors="replace")
    return " ".join(text.split())[:MESSAGE_CHARACTERS_MAX]
