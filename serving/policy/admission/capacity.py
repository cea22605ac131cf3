"""Capacity of the engine behind the gateway."""

from dataclasses import dataclass, field

from emulator.errors import ConfigError
from serving.policy.admission.backlog_times import NO_TIME, BacklogTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """All ranks that are up, together.

    Attributes:
        seats: sequences that run at once.
        kv_tokens: capacity of the KV caches.
        prefill_tokens_per_step: at most.
        dilation: wall seconds per emulated second.
        backlog_times: of a rank's waiting prompts; by default no time.
    """

    seats: int
    kv_tokens: int
    prefill_tokens_per_step: int
    dilation: float = 1.0
    ranks: int = 1
    backlog_times: BacklogTimes = field(default=NO_TIME, repr=False)

    def __post_init__(self) -> None:
        for name in ("seats", "kv_tokens", "prefill_tokens_per_step", "ranks"):
            if getattr(self, name) < 0:
                raise ConfigError(field=name, value=getattr(self, name), expected="at least 0")
        if not self.dilation > 0:
            raise ConfigError(field="dilation", value=self.dilation, expected="more than 0")
