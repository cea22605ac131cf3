"""Keys and values on their way from ranks that prefill: at most so many bytes from one rank.

What may not go yet stays in the blocks of its rank, which takes no further prompts when it has none
left: back-pressure.
"""

from typing import Final

KV_IN_FLIGHT_BYTES_MAX: Final = 1_000_000_000
"""From one rank, at a time; the `kv_buffer_size` of earlier releases of vLLM."""


class KvInFlight:
    """Tokens on their way from each of `ranks`, of `token_bytes` each."""

    def __init__(self, ranks: int, token_bytes: int) -> None:
        self._tokens = [0] * ranks
        self._tokens_max = KV_IN_FLIGHT_BYTES_MAX // token_bytes

    def may_go(self, rank: int, tokens: int) -> bool:
        """Whether `tokens` may leave a rank now; more than the limit go alone."""
        on_way = self._tokens[rank]
        return not on_way or on_way + tokens <= self._tokens_max

    def begin(self, rank: int, tokens: int) -> None:
        """Count tokens that leave a rank."""
        self._tokens[rank] += tokens

    def end(self, rank: int, tokens: int) -> None:
        """Count tokens that are there, or lost."""
        self._tokens[rank] -= tokens
        assert self._tokens[rank] >= 0, "more tokens end than began"
