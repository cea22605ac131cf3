"""Bounds of the queues, and the target for interactive work."""

from dataclasses import dataclass

from emulator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """The bounds of one server's gateway.

    Attributes:
        queue_requests, queue_tokens: interactive requests that have entered and wait for their
            first token, and the tokens of their prompts.
        batch_queue_requests, batch_queue_tokens: the same for batch work that waits at the gateway.
        batch_wait_s: emulated seconds that batch work waits at most.
        ttft_target_s: emulated; interactive work that would wait longer is refused at once. None:
            no target.
        interactive_headroom: share of the engine's seats and KV that batch work leaves to
            interactive work.

    Raises:
        ConfigError: a bound that lets nothing enter, or a share that is none.
    """

    queue_requests: int = 8_192
    queue_tokens: int = 32_000_000
    batch_queue_requests: int = 65_536
    batch_queue_tokens: int = 256_000_000
    batch_wait_s: float = 86_400.0
    ttft_target_s: float | None = None
    interactive_headroom: float = 0.25

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
        raise ConfigError(field=field, value=value, expected=expected)
