"""Refusals: reasons, retry delays and remaining limits."""

import math
from dataclasses import dataclass
from enum import StrEnum

from emulator.errors import UltraServeError


class RefusalReason(StrEnum):
    """The word in metrics, in error bodies and in google.rpc.ErrorInfo (there in capitals)."""

    QUEUE_REQUESTS = "queue_requests"
    QUEUE_TOKENS = "queue_tokens"
    TTFT_TARGET = "ttft_target"
    BATCH_WAIT = "batch_wait"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    CONCURRENT = "concurrent"
    GRAMMARS_PER_MINUTE = "grammars_per_minute"
    DRAINING = "draining"
    RESTING = "resting"
    NO_RANK_UP = "no_rank_up"
    STALLED = "stalled"
    ENGINE_GONE = "engine_gone"

    @property
    def is_of_server(self) -> bool:
        """True: 503, UNAVAILABLE; false: 429, RESOURCE_EXHAUSTED, the client's load."""
        return self in (
            RefusalReason.DRAINING,
            RefusalReason.RESTING,
            RefusalReason.NO_RANK_UP,
            RefusalReason.STALLED,
            RefusalReason.ENGINE_GONE,
        )

    @property
    def is_of_key(self) -> bool:
        """Whether it is a limit of this client's key alone."""
        return self in (
            RefusalReason.REQUESTS_PER_MINUTE,
            RefusalReason.TOKENS_PER_MINUTE,
            RefusalReason.CONCURRENT,
            RefusalReason.GRAMMARS_PER_MINUTE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateState:
    """Remaining limits per minute of a key; None without a limit. Wall seconds."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests_s: float | None = None
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens_s: float | None = None


class Refused(UltraServeError):
    """A refused request; definite: nothing of it runs. `retry_after_s`: finite wall seconds.

    Raise a new instance each time: it holds a traceback, and its key's `rate`.
    """

    def __init__(
        self, reason: RefusalReason, message: str, *, retry_after_s: float, rate: RateState
    ) -> None:
        assert math.isfinite(retry_after_s), "a client can wait so long"
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.rate = rate

    def again(self, rate: RateState) -> "Refused":
        """A copy for another request."""
        return Refused(self.reason, str(self), retry_after_s=self.retry_after_s, rate=rate)
