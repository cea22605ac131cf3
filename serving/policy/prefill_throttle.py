"""Prefill tokens that each rank may compute in the next lockstep.

All ranks wait for the slowest, so one rank's long prefill delays every rank's decodes. A policy
maps each rank's pending prefill and decodes to a budget of prefill tokens; the rank's own scheduler
divides it. Policies are pure: the past is in the demand.

No rank starves: each policy states within how many locksteps a rank with prefill gets a budget.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

I64 = NDArray[np.int64]

Budgets = list[int | None]
"""One entry per rank: prefill tokens at most; 0 lets decodes alone run, None sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillDemand:
    """Demand of the ranks for the next lockstep.

    `pending_tokens`: tokens of prompts (and of recomputed contexts) that a rank could start on;
    `decodes`: requests that need one token each; `waited_steps`: locksteps since the rank last had
    a budget while it wanted one, 0 when it had one in the last.
    """

    pending_tokens: I64  # [ranks]
    decodes: I64  # [ranks]
    waited_steps: I64  # [ranks]

    def __post_init__(self) -> None:
        assert self.pending_tokens.shape == self.decodes.shape == self.waited_steps.shape
        assert self.pending_tokens.ndim == 1

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.pending_tokens)

    @property
    def stalls_decodes(self) -> bool:
        """Whether one rank's prefill would delay another's decode."""
        return bool(self.decodes.any() and self.pending_tokens.any())


class PrefillPolicy(Protocol):
    """Decides the budgets of one lockstep."""

    @property
    def name(self) -> str:
        """The text that `parse_prefill_policy` reads."""
        ...

    @property
    def pending_tokens_max(self) -> int:
        """Where counting pending tokens may stop; 0 asks for none."""
        ...

    def budgets(self, demand: PrefillDemand) -> Budgets:
        """Give each rank its prefill tokens for the next lockstep."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoThrottle:
    """vLLM's own: every rank takes what fits its token budget, in every lockstep."""

    @property
    def name(self) -> str:
        """The text that makes it."""
        return "none"

    @property
    def pending_tokens_max(self) -> int:
        """Nothing is asked."""
        return 0

    def budgets(self, demand: PrefillDemand) -> Budgets:
        """Set no limits."""
        return [None] * demand.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Staggered:
    """At most `prefilling_ranks` ranks prefill in a lockstep, the longest-waiting first.

    With N ranks that have prefill, each gets a turn within ceil(N / prefilling_ranks) locksteps.
    """

    prefilling_ranks: int

    def __post_init__(self) -> None:
        assert self.prefilling_ranks >= 1

    @property
    def name(self) -> str:
        """The text that makes it."""
        return f"staggered:{self.prefilling_ranks}"

    @property
    def pending_tokens_max(self) -> int:
        """Only whether there is something to prefill."""
        return 1

    def budgets(self, demand: PrefillDemand) -> Budgets:
        """Unlimited prefill for the longest-waiting ranks, none for the others."""
        if not demand.stalls_decodes:
            return [None] * demand.ranks
        wanting = np.flatnonzero(demand.pending_tokens)
        # Stable: ranks that waited equally long go by their number.
        longest = np.argsort(-demand.waited_steps[wanting], kind="stable")
        turn = set(wanting[longest[: self.prefilling_ranks]].tolist())
        return [None if rank in turn else 0 for rank in range(demand.ranks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """Each rank prefills at most `tokens` in a lockstep while any rank decodes.

    Every rank with prefill gets a budget in every lockstep.
    """

    tokens: int

    def __post_init__(self) -> None:
        assert self.tokens >= 1

    @property
    def name(self) -> str:
        """The text that makes it."""
        return f"capped:{self.tokens}"

    @property
    def pending_tokens_max(self) -> int:
        """Only whether there is something to prefill."""
        return 1

    def budgets(self, demand: PrefillDemand) -> Budgets:
        """Give all the same cap; none when no decode would wait."""
        return [self.tokens if demand.stalls_decodes else None] * demand.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """One level for all ranks, at which the longest backlog takes `steps` locksteps.

    A lockstep lasts as long as its slowest rank, so a level below the busiest rank's saves nothing,
    and equal shares make it shortest. The level lies between `floor_tokens`, at which a short
    prompt is done at once and a decode hardly delayed, and `ceiling_tokens`, which bounds the
    lockstep. Every rank with prefill gets a budget in every lockstep.
    """

    steps: int
    floor_tokens: int
    ceiling_tokens: int

    def __post_init__(self) -> None:
        assert self.steps >= 1
        assert 1 <= self.floor_tokens <= self.ceiling_tokens

    @property
    def name(self) -> str:
        """The text that makes it."""
        return f"balanced:{self.steps}:{self.floor_tokens}:{self.ceiling_tokens}"

    @property
    def pending_tokens_max(self) -> int:
        """A backlog above this has the ceiling for its level anyway."""
        return self.steps * self.ceiling_tokens

    def budgets(self, demand: PrefillDemand) -> Budgets:
        """Give all the level; no limit when no decode would wait."""
        if not demand.stalls_decodes:
            return [None] * demand.ranks
        longest = int(demand.pending_tokens.max())
        level = min(max(-(-longest // self.steps), self.floor_tokens), self.ceiling_tokens)
        return [level] * demand.ranks


DEFAULT_PREFILL_POLICY = "balanced:64:256:1024"

_EXPECTED = (
    "none, staggered:RANKS, capped:TOKENS or balanced:STEPS:FLOOR:CEILING, whole numbers above 0 "
    "and a floor that is not above its ceiling"
)


def parse_prefill_policy(text: str | None) -> PrefillPolicy:
    """Parse a policy's name; None is the default policy.

    Raises:
        ConfigError: no such policy, or numbers that are missing or make no sense.
    """
    if text is None:
        text = DEFAULT_PREFILL_POLICY
    refusal = ConfigError(field="prefill_policy", value=text, expected=_EXPECTED)
    if not isinstance(text, str):
        raise refusal
    kind, *words = text.split(":")
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise refusal
    match kind, [int(word) for word in words]:
        case "none", []:
            return NoThrottle()
        case "staggered", [ranks]:
            return Staggered(prefilling_ranks=ranks)
        case "capped", [tokens]:
            return Capped(tokens=tokens)
        case "balanced", [steps, floor, ceiling] if floor <= ceiling:
            return Balanced(steps=steps, floor_tokens=floor, ceiling_tokens=ceiling)
    raise refusal
