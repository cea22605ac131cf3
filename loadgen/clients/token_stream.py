"""Reads the messages of one gRPC reply. Pure: no channel, no clock."""

from typing import Any, Final

from loadgen.clients.reply_stream import CHUNKS_BEYOND_MAX
from loadgen.clients.server_json import TOKENS_MAX

_FAILED: Final = ("abort", "error")


class TokenStream:
    """One reply, fed message by message.

    `chunk_ns` grows by the given time for every message with generated tokens, `token_ids` by
    those. Prompt counts are the server's; `output_tokens` counts ids, because the published
    servicer counts each message, not the reply. `problem` says why the reply is incomplete, or is
    empty. `broken`: a count is out of bounds or far more came than asked for; end the call.
    """

    def __init__(self, *, asked_tokens: int) -> None:
        self._tokens_max = asked_tokens + CHUNKS_BEYOND_MAX
        self._broken_by = ""
        self.chunk_ns: list[int] = []
        self.token_ids: list[int] = []
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self._finish_reason: str | None = None

    @property
    def output_tokens(self) -> int | None:
        """Generated tokens; None before the first message."""
        return None if self.input_tokens is None else len(self.token_ids)

    @property
    def broken(self) -> bool:
        """Whether the rest is no use."""
        return bool(self._broken_by)

    @property
    def problem(self) -> str:
        """Empty for a complete reply."""
        if self._broken_by:
            return self._broken_by
        if self._finish_reason is None:
            return "the stream ended before its completion"
        if self._finish_reason in _FAILED:
            return f"the server ended it with {self._finish_reason!r}"
        return "" if self.chunk_ns else "a reply without any generated token"

    def feed(self, response: Any, at_ns: int) -> int:
        """Take in a GenerateResponse that came at `at_ns`; returns the number of new chunks."""
        if response.WhichOneof("response") == "complete":
            complete = response.complete
            self._finish_reason = complete.finish_reason
            self._counts(complete)
            return 0
        chunk = response.chunk
        self._counts(chunk)
        if self._broken_by or not chunk.token_ids:
            return 0
        tokens = len(self.token_ids) + len(chunk.token_ids)
        if tokens > self._tokens_max:
            self._broken_by = f"far more than was asked for: {tokens:,} tokens"
            return 0
        self.chunk_ns.append(at_ns)
        self.token_ids.extend(chunk.token_ids)
        return 1

    def _counts(self, message: Any) -> None:
        if max(message.prompt_tokens, message.cached_tokens) > TOKENS_MAX:  # unsigned: not negative
            self._broken_by = f"a count of more than {TOKENS_MAX:,} tokens"
            return
        self.input_tokens = message.prompt_tokens
        self.cached_tokens = message.cached_tokens
