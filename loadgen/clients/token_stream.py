"""Reads the messages of one gRPC reply: no channel and no clock."""

from typing import Any, Final

_FAILED: Final = ("abort", "error")


class TokenStream:
    """One reply, fed message by message.

    `chunk_ns` grows by the given time for every message with generated tokens, `token_ids` by
    those. Counts of the prompt are the server's; `output_tokens` is the number of ids that came,
    because the published servicer's own count is that of each message and not of the reply.
    `problem` says why what came so far is no complete reply, or is empty.
    """

    def __init__(self) -> None:
        self.chunk_ns: list[int] = []
        self.token_ids: list[int] = []
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self._finish_reason: str | None = None

    @property
    def output_tokens(self) -> int | None:
        """How many were generated; None before the first message."""
        return None if self.input_tokens is None else len(self.token_ids)

    @property
    def problem(self) -> str:
        """Empty for a complete reply."""
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
        if not chunk.token_ids:
            return 0
        self.chunk_ns.append(at_ns)
        self.token_ids.extend(chunk.token_ids)
        return 1

    def _counts(self, message: Any) -> None:
        self.input_tokens = message.prompt_tokens
        self.cached_tokens = message.cached_tokens
