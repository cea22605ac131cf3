"""Prefill tokens that each rank may compute in the next lockstep.

All ranks wait for the slowest, so one rank's long prefill delays every rank's decodes. A policy
maps each rank's pending prefill and decodes to a budget, which the rank's scheduler divides.
Policies are pure: the past is in the demand. Each states within how many locksteps a rank with
prefill gets a budget: none starves.
"""

from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass, fields
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

I64 = NDArray[np.int64]

UNLIMITED: Final = -1
"""The budget of a rank without a limit."""


class EvenLevel(NamedTuple):
    """One level for all ranks, at which the longest backlog takes `steps` locksteps, in bounds."""

    steps: int
    floor_tokens: int
    ceiling_tokens: int


def even_level(longest: int, level: EvenLevel) -> int:
    """The level for the longest backlog; the simulator compiles it."""
    return min(max(-(-longest // level.steps), level.floor_tokens), level.ceiling_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillDemand:
    """Demand of the ranks for the next lockstep.

    `pending_tokens`: of prompts and recomputed contexts that could start; `decodes`: requests that
    need one token; `waited_steps`: locksteps since the rank had a budget while it wanted one, 0 if
    in the last.
    """

    pending_tokens: I64  # [ranks]
    decodes: I64  # [ranks]
    waited_steps: I64  # [ranks]

    def __post_init__(self) -> None:
        assert self.pending_tokens.shape == self.decodes.shape == self.waited_steps.shape
        assert self.pending_tokens.ndim == 1

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.pending_tokens)

    @property
    def stalls_decodes(self) -> bool:
        """Whether one rank's prefill would delay another's decode."""
        return bool(self.decodes.any() and self.pending_tokens.any())

    def waited_after(self, budgets: I64) -> I64:
        """`waited_steps` of the next demand, once a lockstep had these budgets: both [ranks]."""
        return np.where((self.pending_tokens > 0) & (budgets == 0), self.waited_steps + 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPolicy(ABC):
    """Decides the budgets of one lockstep. A subclass in `_POLICIES` is a policy of every command.

    `form`: the text that `parse_prefill_policy` reads, with a word in capitals for each field, in
    order. Raises ConfigError for numbers out of range.
    """

    form: ClassVar[str]

    def __post_init__(self) -> None:
        if not self._makes_sense:
            raise _refusal(self.name)

    @property
    def _makes_sense(self) -> bool:
        return all(number > 0 for number in astuple(self))

    @property
    def name(self) -> str:
        """The text that parses to it."""
        return ":".join([self.form.partition(":")[0], *map(str, astuple(self))])

    @property
    def pending_tokens_max(self) -> int:
        """Bound up to which pending tokens need counting: 1 for any or none, 0 for no counting."""
        return 1

    @property
    def even_level(self) -> EvenLevel | None:
        """`budgets` where a decode would wait, if they are such a level; None for other budgets.

        Where none would, such a policy sets no limit.
        """
        return None

    @abstractmethod
    def budgets(self, demand: PrefillDemand) -> I64:
        """Prefill tokens of each rank in the next lockstep, [ranks].

        0 lets decodes alone run, UNLIMITED sets no limit.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoThrottle(PrefillPolicy):
    """vLLM's own: every rank takes what fits its token budget."""

    form = "none"

    @property
    def pending_tokens_max(self) -> int:
        """No counting."""
        return 0

    @property
    def even_level(self) -> EvenLevel:
        """Never a limit."""
        return EvenLevel(steps=1, floor_tokens=UNLIMITED, ceiling_tokens=UNLIMITED)

    def budgets(self, demand: PrefillDemand) -> I64:
        """No limits."""
        return _same_for_all(demand, UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staggered(PrefillPolicy):
    """At most `prefilling_ranks` ranks prefill in a lockstep, the longest-waiting first.

    Each of N ranks with prefill gets a turn within ceil(N / prefilling_ranks) locksteps.
    """

    form = "staggered:RANKS"

    prefilling_ranks: int

    def budgets(self, demand: PrefillDemand) -> I64:
        """Unlimited prefill for the longest-waiting ranks, none for the others."""
        if not demand.stalls_decodes:
            return _same_for_all(demand, UNLIMITED)
        wanting = np.flatnonzero(demand.pending_tokens)
        # Stable: ranks that waited equally long go by their number.
        longest = np.argsort(-demand.waited_steps[wanting], kind="stable")
        budgets = _same_for_all(demand, 0)
        budgets[wanting[longest[: self.prefilling_ranks]]] = UNLIMITED
        return budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped(PrefillPolicy):
    """Each rank prefills at most `tokens` in every lockstep in which any rank decodes."""

    form = "capped:TOKENS"

    tokens: int

    @property
    def even_level(self) -> EvenLevel:
        """The cap."""
        return EvenLevel(steps=1, floor_tokens=self.tokens, ceiling_tokens=self.tokens)

    def budgets(self, demand: PrefillDemand) -> I64:
        """The same cap for all; none when no decode would wait."""
        return _same_for_all(demand, self.tokens if demand.stalls_decodes else UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced(PrefillPolicy):
    """One level for all ranks, each lockstep, at which the longest backlog takes `steps` locksteps.

    A lockstep lasts as long as its slowest rank: a level below the busiest rank's saves nothing,
    and equal shares make it shortest. At `floor_tokens` a short prompt is done at once and a decode
    hardly delayed; `ceiling_tokens` bounds the lockstep.
    """

    form = "balanced:STEPS:FLOOR:CEILING"

    steps: int
    floor_tokens: int
    ceiling_tokens: int

    @property
    def _makes_sense(self) -> bool:
        return self.steps > 0 and 0 < self.floor_tokens <= self.ceiling_tokens

    @property
    def pending_tokens_max(self) -> int:
        """A larger backlog has the ceiling for its level anyway."""
        return self.steps * self.ceiling_tokens

    @property
    def even_level(self) -> EvenLevel:
        """Its fields."""
        return EvenLevel(*astuple(self))

    def budgets(self, demand: PrefillDemand) -> I64:
        """The same level for all; no limit when no decode would wait."""
        if not demand.stalls_decodes:
            return _same_for_all(demand, UNLIMITED)
        return _same_for_all(demand, even_level(int(demand.pending_tokens.max()), self.even_level))


def _same_for_all(demand: PrefillDemand, budget: int) -> I64:
    return np.full(demand.ranks, budget, dtype=np.int64)


_POLICIES: Final[tuple[type[PrefillPolicy], ...]] = (NoThrottle, Staggered, Capped, Balanced)

PREFILL_POLICIES: Final = (
    ", ".join(each.form for each in _POLICIES[:-1]) + f" or {_POLICIES[-1].form}"
)
"""All forms, for help and errors."""

DEFAULT_PREFILL_POLICY: Final = "balanced:64:256:1024"


def parse_prefill_policy(text: str | None) -> PrefillPolicy:
    """Parse a policy's name; None is the default. Raises ConfigError for an unknown policy, and
    numbers that are missing or out of range.
    """
    if text is None:
        text = DEFAULT_PREFILL_POLICY
    if not isinstance(text, str):
        raise _refusal(text)
    kind, *words = text.split(":")
    are_numbers = all(word.isascii() and word.isdigit() for word in words)
    for policy in _POLICIES:
        known, *capitals = policy.form.split(":")
        if kind == known and len(words) == len(capitals) and are_numbers:
            names = (field.name for field in fields(policy))
            return policy(**dict(zip(names, map(int, words), strict=True)))
    raise _refusal(text)


def _refusal(value: object) -> ConfigError:
    sense = "whole numbers above 0 and a floor that is not above its ceiling"
    return ConfigError("prefill_policy", value, f"{PREFILL_POLICIES}, {sense}")
