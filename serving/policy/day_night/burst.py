"""What the load needs at once, whatever was foretold: how a burst at night takes chips back."""

from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision

CATCH_UP_S: Final = 30.0
"""Assumed: a queue is to be gone within half a minute, before a caller gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """How much above the present load must serve, and how long a group that came back stays.

    `headroom`: share of the load on top, for what varies within one look; `dwell_s`: time after a
    change in which no further group leaves, a rise is never held back; `ttft_target`: share of
    requests that must meet their TTFT target, below which one more group comes back.
    Raises ConfigError for what cannot be.
    """

    headroom: float = 0.1
    dwell_s: float = 1_800.0
    ttft_target: float = 0.99

    def __post_init__(self) -> None:
        for name in ("headroom", "dwell_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(field=name, value=getattr(self, name), expected=">= 0")
        if not 0 <= self.ttft_target <= 1:
            expected = "a share, 0 to 1"
            raise ConfigError(field="ttft_target", value=self.ttft_target, expected=expected)

    def needed(self, observed: Observation, requests_per_s: float) -> int:
        """Return the groups that a rate needs with the headroom."""
        return observed.groups_for(requests_per_s * (1.0 + self.headroom))

    def needed_now(self, observed: Observation) -> Decision:
        """Return the groups that the load, the queue and the TTFT attainment need at once."""
        queued_per_s = observed.queue / CATCH_UP_S
        groups = self.needed(observed, observed.load_per_s + queued_per_s)
        reason = f"load {observed.load_per_s:.3g}/s" + (
            f", {observed.queue} waiting" if observed.queue else ""
        )
        missed = observed.ttft_attainment is not None and (
            observed.ttft_attainment < self.ttft_target
        )
        if missed:
            # What was taken back last has to arrive before it can help.
            more = 1 if observed.since_change_s >= observed.restore_s else 0
            wanted = min(observed.serving_groups + more, observed.groups)
            if wanted > groups:
                return Decision(
                    serving_groups=wanted,
                    reason=f"TTFT met by {observed.ttft_attainment:.1%}, below "
                    f"{self.ttft_target:.1%}",
                )
        return Decision(serving_groups=groups, reason=reason)

    def settled(self, observed: Observation, wanted: Decision) -> Decision:
        """Return what is wanted, but nothing below the present need and no fall within the dwell.

        A number of serving groups above what the observation allows is cut to it.
        """
        now = self.needed_now(observed)
        best = now if now.serving_groups > wanted.serving_groups else wanted
        serving = min(max(best.serving_groups, observed.groups_min), observed.groups)
        held = min(max(observed.serving_groups, observed.groups_min), observed.groups)
        if serving < held and observed.since_change_s < self.dwell_s:
            left_s = self.dwell_s - observed.since_change_s
            return Decision(
                serving_groups=held, reason=f"{best.reason}; no group leaves for {left_s:.0f} s"
            )
        return Decision(serving_groups=serving, reason=best.reason)


def burst_response_s(*, look_s: float, restore_s: float) -> float:
    """Return the longest time from a burst to the groups that it needs serving, in seconds.

    `look_s` is the time until a look sees the whole load, what the rate is a mean of included, and
    `restore_s` that of a group to come back. No dwell holds a rise back.
    """
    return look_s + restore_s
