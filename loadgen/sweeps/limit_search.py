"""The search for the highest load that keeps an SLO: the next load to run.

First it halves the ratio between the highest load that seems to keep it and the lowest that does
not, down to the precision. Then it repeats undecided loads until decided or out of runs. One still
undecided counts as not kept, and the search goes on below: the answer was kept with confidence.

*Assumed*: more load never does better. Loads below a kept one are not run, and where a higher load
seems kept above one that was not, the lower one counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadgen.records.sweep_record import Axis, Verdict

DESCENTS_MAX: Final = 6
"""Halvings below the lowest given load before giving up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Evidence at a load: its verdict, whether the share so far would keep the SLO, and whether
    another run is allowed.
    """

    verdict: Verdict
    seems_kept: bool
    may_repeat: bool

    @property
    def open(self) -> bool:
        """Undecided, with runs left."""
        return self.verdict == "undecided" and self.may_repeat

    @property
    def leans_kept(self) -> bool:
        """Kept, or likely to be."""
        return self.verdict == "kept" or (self.open and self.seems_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The highest load kept below all that were not, and the lowest that was not."""

    kept: float | None
    above: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSearch:
    """Settings: stop where the bracket's ends are within `precision` of each other.

    Loads of the axis concurrency are whole numbers. Raises ValueError for a precision not above 0.
    """

    axis: Axis
    lowest: float
    precision: float

    def __post_init__(self) -> None:
        if not self.precision > 0:
            raise ValueError(f"a precision of {self.precision}")

    def bracket(self, standings: Mapping[float, Standing]) -> Bracket:
        """The certain bracket: the answer, when `next_load` is None."""
        missed = min(
            (load for load, each in standings.items() if each.verdict == "missed"), default=math.inf
        )
        kept = max(
            (load for load, each in standings.items() if each.verdict == "kept" and load < missed),
            default=None,
        )
        not_kept = [
            load
            for load, each in standings.items()
            if each.verdict != "kept" and (kept is None or load > kept)
        ]
        return Bracket(kept=kept, above=min(not_kept, default=None))

    def next_load(self, standings: Mapping[float, Standing]) -> float | None:
        """The load to run next, new or again; None at the end. Needs at least one standing."""
        below, above = self._ends(standings)
        if above is None:
            top = max(standings)
            return top if standings[top].open else None
        if below is None:
            return above if standings[above].open else self._lower(above)
        middle = self._middle(below, above)
        if middle is not None:
            return middle
        for load in (below, above):
            if standings[load].open:
                return load
        return None

    def _ends(self, standings: Mapping[float, Standing]) -> tuple[float | None, float | None]:
        """The highest load that leans to be kept, and the lowest above it that does not.

        Loads below one certainly kept count as kept, unless missed.
        """
        sure = self.bracket(standings).kept
        above = min(
            (
                load
                for load, each in standings.items()
                if not each.leans_kept and (sure is None or load > sure)
            ),
            default=None,
        )
        limit = math.inf if above is None else above
        below = max(
            (load for load, each in standings.items() if each.leans_kept and load < limit),
            default=None,
        )
        return below, above

    def _middle(self, below: float, above: float) -> float | None:
        """Geometric middle of the ends; None where they are close enough."""
        if above <= below * (1 + self.precision):
            return None
        if self.axis == "concurrency":
            if above - below <= 1:
                return None
            return min(max(float(math.floor(math.sqrt(below * above))), below + 1), above - 1)
        middle = float(f"{math.sqrt(below * above):.4g}")
        return middle if below < middle < above else None

    def _lower(self, missed: float) -> float | None:
        """Half of `missed`; None at the bottom."""
        half = missed / 2
        if self.axis == "concurrency":
            half = float(math.floor(half))
            return half if half >= 1 else None
        return half if half >= self.lowest / 2**DESCENTS_MAX else None
