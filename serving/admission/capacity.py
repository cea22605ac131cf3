"""What the engine behind the door can hold and take in."""

from dataclasses import dataclass

from emulator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of all ranks that are up, together.

    Attributes:
        seats: sequences that run at once.
        kv_tokens: that the KV caches have room for.
        prefill_tokens_per_step: that one step computes at most.
        dilation: wall seconds per emulated second.
    """

    seats: int
    kv_tokens: int
    prefill_tokens_per_step: int
    dilation: float = 1.0

    def __post_init__(self) -> None:
        for name in ("seats", "kv_tokens", "prefill_tokens_per_step"):
            if getattr(self, name) < 0:
                raise ConfigError(field=name, value=getattr(self, name), expected="at least 0")
        if not self.dilation > 0:
            raise ConfigError(field="dilation", value=self.dilation, expected="more than 0")
