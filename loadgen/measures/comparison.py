"""A comparison of two sides, figure by figure; made by `loadgen.measures.difference`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["better", "worse", "different", "within noise", "unknown"]
"""Of side b against side a. "different": beyond noise where neither direction is better; "unknown":
too little data.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure on both sides.

    `figure` is a name of `definitions`; `statistic` is "mean", "p50", "p90", "p99", or empty for a
    figure with one value per run; `traffic_class` is empty for all classes together. `a` and `b`
    are means over a side's runs, None if missing. `relative` is (b - a) / a with its 95 %
    confidence interval, None if unknown. `p_value` is the chance of so large a difference between
    equal sides.
    """

    figure: str
    statistic: str
    traffic_class: str
    a: float | None
    b: float | None
    relative: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    verdict: Verdict = "unknown"

    @property
    def beyond_noise(self) -> bool:
        """Whether chance does not explain it."""
        return self.verdict in ("better", "worse", "different")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its label (or start), number of runs, first command, and requests."""

    label: str
    runs: int
    command: str
    completed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All differences, those of all classes together first.

    `time` is "emulated" or "wall"; `method` says how noise was estimated; `apart` maps differing
    settings to (a, b); `notes` are caveats of the verdicts.
    """

    time: str
    a: Side
    b: Side
    differences: tuple[Difference, ...]
    method: str
    apart: Mapping[str, tuple[str, str]]
    notes: tuple[str, ...] = ()

    @property
    def unknown(self) -> tuple[Difference, ...]:
        """Differences with too little data for a verdict."""
        return tuple(each for each in self.differences if each.verdict == "unknown")

    @property
    def beyond_noise(self) -> tuple[Difference, ...]:
        """Differences that chance does not explain."""
        return tuple(each for each in self.differences if each.beyond_noise)
