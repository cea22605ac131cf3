"""Capacity of the engine behind the gateway, and its time to compute waiting prompts. Pure.

Times are emulated, by the cost model, of one rank: one table per deployment, made at start
(`serving.server.gateway.engine_times`).
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BacklogCurve:
    """Seconds by waiting prompt tokens of a rank, at one decode load."""

    tokens: Float64s  # [backlogs]
    drain_s: Float64s  # [backlogs] until all are computed
    step_s: Float64s  # [backlogs] of the next step

    def wait_s(self, tokens: float) -> float:
        """Seconds until these tokens are computed, this step included; linear beyond the table."""
        last = self.tokens[-1]
        if tokens > last:
            return self.wait_s(last) * tokens / float(last)
        return float(np.interp(tokens, self.tokens, self.drain_s)) + self.step_s_at(tokens)

    def step_s_at(self, tokens: float) -> float:
        """Seconds of the next step at this backlog."""
        return float(np.interp(tokens, self.tokens, self.step_s))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BacklogTimes:
    """Times of a rank's backlog beside its decodes, equal on all ranks.

    Attributes:
        tokens: [backlogs] waiting on each rank; ascending from 0.
        decodes: [decodes] decoding requests of a rank; ascending from 1.
        drain_s, step_s: [backlogs, decodes + 1] until the backlog is computed, and of the next
            step; the last column is without decodes.
        drain_s_per_context, step_s_per_context: added per context token of a decode.
        drain_s_per_prompt, step_s_per_prompt: added per token of the mean waiting prompt.
    """

    tokens: Float64s
    decodes: Float64s
    drain_s: Float64s
    step_s: Float64s
    drain_s_per_context: Float64s
    step_s_per_context: Float64s
    drain_s_per_prompt: Float64s
    step_s_per_prompt: Float64s

    def beside(
        self, *, decodes: float | None, context_tokens: float, prompt_tokens: float
    ) -> BacklogCurve:
        """The curve at these means of a rank; `decodes` None: none until the backlog is done."""
        drain_s = (
            self.drain_s
            + context_tokens * self.drain_s_per_context
            + prompt_tokens * self.drain_s_per_prompt
        )
        step_s = (
            self.step_s
            + context_tokens * self.step_s_per_context
            + prompt_tokens * self.step_s_per_prompt
        )
        if decodes is None:
            return BacklogCurve(tokens=self.tokens, drain_s=drain_s[:, -1], step_s=step_s[:, -1])
        place = float(np.interp(decodes, self.decodes, np.arange(len(self.decodes))))
        below, share = int(place), place % 1.0
        above = min(below + 1, len(self.decodes) - 1)
        return BacklogCurve(
            tokens=self.tokens,
            drain_s=(1.0 - share) * drain_s[:, below] + share * drain_s[:, above],
            step_s=(1.0 - share) * step_s[:, below] + share * step_s[:, above],
        )

    @classmethod
    def linear(cls, *, step_s: float, token_s: float, step_tokens: int) -> "BacklogTimes":
        """A table of steps of at most `step_tokens`, which take `step_s` plus `token_s` a token."""
        tokens = np.array([0.0, 1e9])
        full_s = np.full((2, 2), step_s + token_s * step_tokens)
        drain_s = tokens[:, None] * full_s / max(1, step_tokens)
        none = np.zeros((2, 2))
        return cls(
            tokens=tokens,
            decodes=np.array([1.0]),
            drain_s=drain_s,
            step_s=full_s,
            drain_s_per_context=none,
            step_s_per_context=none,
            drain_s_per_prompt=none,
            step_s_per_prompt=none,
        )


NO_TIME: Final = BacklogTimes.linear(step_s=0.0, token_s=0.0, step_tokens=1)
"""Without a cost model prompts take no time."""


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
                raise ConfigError(name, getattr(self, name), "at least 0")
        if not self.dilation > 0:
            raise ConfigError("dilation", self.dilation, "more than 0")
