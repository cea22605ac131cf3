"""What the ranks of an engine do: compute prompts, decode, or both; and how many of them prefill.
The same of the replicas of a service.

No more ranks prefill than prompts need, since each one less leaves the others fewer decodes, and
shorter steps. One more does while prompts wait for several full steps, as long as the seats of the
others are enough. A change moves the KV of what decodes there, so it needs a load that lasts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from emulator.errors import ConfigError

AUTO: Final = "auto"
"""As a number of ranks: decided by `RoleDecider`."""

LOOK_EVERY_S: Final = 0.1
"""Emulated seconds between two looks at the load. This and the next ones are assumed."""

LASTS_S: Final = 1.0
"""How long the load must ask for a change."""

WAITING_STEPS_MAX: Final = 2.0
"""Full steps of the ranks that prefill, above which prompts wait for too long."""

SPARE_STEPS_MAX: Final = 0.5
"""Steps that prompts would take with a rank less, up to which it is not needed."""

SEATS_USED_MAX: Final = 0.75
"""Share of the seats of ranks that decode, with one rank less, above which none leaves them."""


class RankRole(StrEnum):
    """Of a rank: PREFILL sends its requests on with their first token, DECODE takes them."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


Roles = tuple[RankRole, ...]


def check_prefill_ranks(prefill_ranks: int | str, ranks: int) -> None:
    """Raise ConfigError for a number of ranks that leaves none to decode; `auto` needs two."""
    fits = prefill_ranks == AUTO and ranks > 1
    if not fits and not (type(prefill_ranks) is int and 0 <= prefill_ranks < max(1, ranks)):
        expected = f"0 to {max(0, ranks - 1)}, fewer than the ranks (chips over tp), or {AUTO}"
        raise ConfigError("prefill_ranks", prefill_ranks, f"{expected} with two ranks")


def first_roles(prefill_ranks: int | str, ranks: int) -> Roles:
    """Of an engine that starts: the first ranks prefill, half of them with `auto`."""
    count = ranks // 2 if prefill_ranks == AUTO else int(prefill_ranks)
    if not count:
        return (RankRole.BOTH,) * ranks
    return (RankRole.PREFILL,) * count + (RankRole.DECODE,) * (ranks - count)


def with_role(roles: Roles, rank: int, role: RankRole, *, of: str = "rank") -> Roles:
    """The roles with another one of a rank; raises ConfigError where no rank prefills, or decodes,
    or the rank is none. `of`: what has the roles.
    """
    if not 0 <= rank < len(roles):
        raise ConfigError(of, rank, f"0 to {len(roles) - 1}")
    changed = (*roles[:rank], role, *roles[rank + 1 :])
    for other in (RankRole.PREFILL, RankRole.DECODE):
        if set(changed) == {other}:
            missing = "decodes" if other is RankRole.PREFILL else "prefills"
            raise ConfigError("role", role.value, f"another one: no other {of} {missing}")
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLoad:
    """Prompt tokens that are not computed yet, and requests that decode or whose KV comes."""

    prompt_tokens: int
    decodes: int


class RoleDecider:
    """Moves a rank at a time between ranks that prefill and ranks that decode.

    `step_tokens` and `seats` are those of a rank.
    """

    def __init__(self, *, step_tokens: int, seats: int) -> None:
        self._step_tokens = step_tokens
        self._seats = seats
        self._look_s = 0.0
        self._wanted = 0
        self._since_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether it wants to see the load now."""
        return now_s >= self._look_s

    def note_idle(self) -> None:
        """Hear that no request is there, at a look or between two: prompts do not wait any more,
        so a rank more is not needed. That a rank less would do stays true.
        """
        self._wanted = min(self._wanted, 0)

    def decide(self, roles: Roles, load: RoleLoad, now_s: float) -> Roles:
        """The roles from now on; they stay where no request is there."""
        self._look_s = now_s + LOOK_EVERY_S
        if not (load.prompt_tokens or load.decodes):
            self.note_idle()
            return roles
        wanted = self._direction(roles, load)
        if wanted != self._wanted:
            self._wanted, self._since_s = wanted, now_s
        if not wanted or now_s < self._since_s + LASTS_S:
            return roles
        self._since_s = now_s
        if wanted > 0:
            return with_role(roles, roles.index(RankRole.DECODE), RankRole.PREFILL)
        last = len(roles) - 1 - roles[::-1].index(RankRole.PREFILL)
        return with_role(roles, last, RankRole.DECODE)

    def _direction(self, roles: Roles, load: RoleLoad) -> int:
        """1 for a rank more that prefills, -1 for one more that decodes, else 0."""
        prefill, decode = roles.count(RankRole.PREFILL), roles.count(RankRole.DECODE)
        waiting_steps = load.prompt_tokens / (max(1, prefill) * self._step_tokens)
        left_seats = SEATS_USED_MAX * (decode - 1) * self._seats
        if decode > 1 and waiting_steps > WAITING_STEPS_MAX and load.decodes <= left_seats:
            return 1
        if prefill < 2:
            return 0
        spare_steps = load.prompt_tokens / ((prefill - 1) * self._step_tokens)
        return -1 if spare_steps <= SPARE_STEPS_MAX else 0


def parse_prefill_ranks(text: str) -> int | str:
    """A number of ranks or `auto`; raises ConfigError."""
    if text == AUTO:
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError("prefill_ranks", text, f"a number of ranks, or {AUTO}") from None


def prefilling(roles: Sequence[RankRole]) -> list[bool]:
    """Which ranks send requests on, [ranks]."""
    return [role is RankRole.PREFILL for role in roles]
