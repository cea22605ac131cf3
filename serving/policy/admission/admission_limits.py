"""Bounds of the queues, and the interactive TTFT target."""

from dataclasses import dataclass

from emulator.errors import ConfigError
from startup.typed_options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds of one gateway; raises ConfigError if one admits nothing or is out of range."""

    queue_requests: int = option(
        8_192, "interactive requests that wait for their first token, at most"
    )
    queue_tokens: int = option(32_000_000, "tokens of their prompts, at most")
    batch_queue_requests: int = option(65_536, "batch requests that wait at the gateway, at most")
    batch_queue_tokens: int = option(256_000_000, "tokens of their prompts, at most")
    batch_wait_s: float = option(
        86_400.0, "emulated seconds that a batch request waits, at most", metavar="S"
    )
    ttft_target_s: float | None = option(
        None,
        "emulated seconds to the first token; interactive requests that would wait longer are "
        "refused at once (default: no target, and the queues alone bound the wait)",
        metavar="S",
    )
    interactive_headroom: float = option(
        0.25,
        "share of seats and KV cache that batch requests leave to interactive ones",
        metavar="SHARE",
    )

    def __post_init__(self) -> None:
        for name in ("queue_requests", "queue_tokens", "batch_queue_requests"):
            _check(name, getattr(self, name), "at least 1", fits=getattr(self, name) >= 1)
        tokens = self.batch_queue_tokens
        _check("batch_queue_tokens", tokens, "at least 1", fits=tokens >= 1)
        _check("batch_wait_s", self.batch_wait_s, "more than 0", fits=self.batch_wait_s > 0)
        target_s = self.ttft_target_s
        _check("ttft_target_s", target_s, "more than 0", fits=target_s is None or target_s > 0)
        _check(
            "interactive_headroom",
            self.interactive_headroom,
            "0 to less than 1",
            fits=0 <= self.interactive_headroom < 1,
        )


def _check(field: str, value: object, expected: str, *, fits: bool) -> None:
    if not fits:
        raise ConfigError(field, value, expected)
