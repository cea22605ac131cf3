"""Choices of a simulated engine that its user makes: plain Python functions, or compiled ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.errors import ConfigError
from serving.policy.prefill_throttle import UNLIMITED, PrefillDemand, PrefillPolicy

_ALL_TOKENS: Final = 1 << 62


class RankChoice(Protocol):
    """As `serving.policy.rank_choice.choose_rank`: the rank of a request, of those that are up."""

    def __call__(
        self, *, hit_tokens: Int64s, load_tokens: Int64s, has_seat: Bools, is_up: Bools
    ) -> int | None:
        """All are [ranks]; at least one is up."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrefillPolicy(PrefillPolicy):
    """A function from the demand of a lockstep to its budgets, [ranks]; see `PrefillPolicy`."""

    form = "own"

    function: Callable[[PrefillDemand], Int64s]

    @property
    def _makes_sense(self) -> bool:
        return True

    @property
    def pending_tokens_max(self) -> int:
        """All are counted."""
        return _ALL_TOKENS

    def budgets(self, demand: PrefillDemand) -> Int64s:
        """Those of the function; raises ConfigError for others than the scheduler can use."""
        found = np.asarray(self.function(demand))
        usable = found.shape == (demand.ranks,) and found.dtype.kind in "iu"
        if not usable or (found < UNLIMITED).any():
            expected = f"{demand.ranks} whole numbers of at least {UNLIMITED}"
            raise ConfigError("prefill", found, expected)
        return found.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChoices:
    """A rank choice and a prefill policy in place of the live engine's; None leaves it."""

    rank: RankChoice | None = None
    prefill: Callable[[PrefillDemand], Int64s] | None = None


NO_CHOICES: Final = OwnChoices()
