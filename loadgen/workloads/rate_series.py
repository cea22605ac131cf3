"""Recorded request rates at even steps of time; a few missing steps are told, not hidden.

Must not know where they were recorded (`loadgen.workloads.rate_file` reads a CSV).
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from loadgen.records.arrays import Float64s

RATE_MAX: Final = 1e12
"""Above what any unit of a served rate comes to: a slip of a column."""
MISSING_SHARE_MAX: Final = 0.1
"""Of the steps from first to last; a series with more holes would be mostly straight lines."""
_JITTER: Final = 0.5
"""Of a step, by which times may lie beside their step's."""


class SampleError(ValueError):
    """A sample that cannot be used: its number, from 0, and why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateSeries:
    """Rates, in any one unit; each holds from its time until a step later.

    Attributes:
        begins_unix_s: Unix time of the first; None where times count from an unnamed begin.
        times_s: from the first on, ascending. [samples]
        step_s: the median from one time to the next.
        missing: steps between first and last without a sample.
    """

    begins_unix_s: float | None
    times_s: Float64s
    rates: Float64s  # [samples]
    step_s: float
    missing: int

    @classmethod
    def of(cls, times_s: Float64s, rates: Float64s, *, is_unix: bool) -> Self:
        """From times and rates, [samples]. Raises SampleError.

        Expects times that ascend, two at least, with `MISSING_SHARE_MAX` of the steps missing at
        most, and rates from 0 to `RATE_MAX`.
        """
        bad = ~(np.isfinite(rates) & (rates >= 0) & (rates <= RATE_MAX))
        if bad.any():
            number = int(bad.argmax())
            raise SampleError(number, f"the rate {rates[number]:g} is not in 0 to {RATE_MAX:g}")
        gaps_s = np.diff(times_s)
        if (gaps_s <= 0).any():
            number = int((gaps_s <= 0).argmax()) + 1
            raise SampleError(number, "its time is not after that of the one above")
        if not len(gaps_s):
            raise SampleError(0, "expected two times or more: a rate holds until the next")
        step_s = float(np.median(gaps_s))
        skipped = np.maximum(0, np.ceil(gaps_s / step_s - 1 - _JITTER)).astype(np.int64)  # [gaps]
        missing = int(skipped.sum())
        if missing > MISSING_SHARE_MAX * (len(rates) + missing):
            number = int(skipped.argmax()) + 1
            raise SampleError(
                number,
                f"{missing:,} steps of {step_s:g} s are missing, {skipped.max():,} of them before "
                f"this one: expected {MISSING_SHARE_MAX:.0%} of {len(rates) + missing:,} at most",
            )
        return cls(
            begins_unix_s=float(times_s[0]) if is_unix else None,
            times_s=times_s - times_s[0],
            rates=rates,
            step_s=step_s,
            missing=missing,
        )

    @property
    def length_s(self) -> float:
        """From the first sample to the end of the last one's step."""
        return float(self.times_s[-1]) + self.step_s

    @property
    def words(self) -> str:
        """How many of what step, and how missing ones are filled."""
        steps = "hours" if self.step_s == 3_600 else f"steps of {self.step_s:g} s"
        if not self.missing:
            return f"{len(self.rates):,} {steps}"
        return (
            f"{len(self.rates) + self.missing:,} {steps}, {self.missing:,} of them missing and "
            "taken from straight lines between their neighbours"
        )
