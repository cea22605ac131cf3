"""The policy of a forecast with its confidence, headroom, and a dwell.

A group leaves when the peak until it could be back after a whole dwell fits into the others; one
comes back when the peak until it could serve does not fit. The first window contains the second
(hysteresis): only a wrong forecast calls back what it sent away.
"""

from dataclasses import dataclass, field
from typing import Self

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.forecast import DAY_S, Forecast, forecast_peak
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.options import (
    check_learning,
    duration_text,
    options_text,
    with_options,
)
from serving.policy.day_night.policy import Decision, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantilePolicy(Policy):
    """Lends what the forecast does not need. Raises ConfigError for values out of range.

    `confidence`: share of requests that stays below what is kept. `warm_s`: history needed before
    it lends; a day, since only a night and a morning show how fast mornings rise.
    """

    name = "quantile"
    weighs_demand = True

    guard: Guard = field(default_factory=lambda: Guard(headroom=0.03, dwell_s=300.0))
    confidence: float = 0.985
    warm_s: float = DAY_S

    def __post_init__(self) -> None:
        check_learning(confidence=self.confidence, warm_s=self.warm_s)

    def __str__(self) -> str:
        options = options_text(self, QuantilePolicy(confidence=self.confidence))
        share = f"{self.name}:{self.confidence!r}"
        return f"{share},{options}" if options else share

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[CONFIDENCE][,headroom=0.1,...]`; raises ConfigError."""
        share, _, options = text.partition(",")
        policy = cls()
        if share.strip():
            try:
                policy = cls(confidence=float(share))
            except ValueError:
                raise ConfigError("quantile", share, "a share such as 0.99") from None
        read: Self = with_options(policy, options)
        return read

    def decide(self, observed: Observation) -> Decision:
        """Keep what the forecast may need until a group could be back."""
        return self.guard.settled(observed, self._wanted(observed))

    def _wanted(self, observed: Observation) -> Decision:
        history = observed.history
        if len(history) * history.bucket_s < self.warm_s:
            return Decision(
                serving_groups=observed.groups,
                reason=f"less than {duration_text(self.warm_s)} of history",
            )
        soon_s, later_s = self.windows_s(observed)
        soon, soon_high = self._needed(observed, soon_s)
        if soon > observed.serving_groups:
            return Decision(serving_groups=soon, reason=f"{soon_high:.3g}/s foretold soon")
        later, later_high = self._needed(observed, later_s)
        if later < observed.serving_groups:
            return Decision(serving_groups=later, reason=f"at most {later_high:.3g}/s foretold")
        return Decision(
            serving_groups=observed.serving_groups,
            reason=f"{soon_high:.3g}/s foretold soon, {later_high:.3g}/s later",
        )

    def _needed(self, observed: Observation, window_s: float) -> tuple[int, float]:
        """Groups for the peak of the window, and that peak in requests per second."""
        foretold = self.forecast(observed, window_s)
        return self.guard.needed(observed, foretold.high_per_s), foretold.high_per_s

    def windows_s(self, observed: Observation) -> tuple[float, float]:
        """Seconds until a group called back now could serve, and one that leaves now could."""
        history = observed.history
        # The next look is about a bucket away, and a group that is called then needs its time.
        late_s = max(observed.now_s - history.end_s, 0.0)
        soon_s = late_s + observed.restore_s + history.bucket_s
        later_s = soon_s + observed.drain_s + self.guard.dwell_s
        longest_s = DAY_S - history.bucket_s
        return min(soon_s, longest_s), min(later_s, longest_s)

    def forecast(self, observed: Observation, window_s: float) -> Forecast:
        """The peak of demand within `window_s`, with this policy's confidence."""
        return forecast_peak(observed.history, window_s=window_s, confidence=self.confidence)

    def describe(self) -> str:
        """State what it does and assumes."""
        return (
            f"{self}: keeps what {self.confidence:.3g} of the requests stay below and "
            f"{self.guard.headroom:.0%} headroom, no group leaves within "
            f"{duration_text(self.guard.dwell_s)} of a change; assumed: the coming window errs as "
            f"those of the last week did, and a queue is to be gone in 30 s"
        )
