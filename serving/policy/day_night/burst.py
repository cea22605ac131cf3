"""Groups that the load needs now: a burst at night takes chips back."""

from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision

CATCH_UP_S: Final = 30.0
"""Assumed: a queue is to be gone before a caller gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Headroom above the present load, and the dwell after a change.

    `headroom`: share on top of the load, for variation between observations; `dwell_s`: after a
    change no group leaves for so long, but more may come back; `target`: share of requests within
    TTFT, and within TPOT, below which one more group comes back. Raises ConfigError for values
    out of range.
    """

    headroom: float = 0.1
    dwell_s: float = 1_800.0
    target: float = 0.99

    def __post_init__(self) -> None:
        for name in ("headroom", "dwell_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), ">= 0")
        if not 0 <= self.target <= 1:
            raise ConfigError("target", self.target, "a share, 0 to 1")

    def needed(self, observed: Observation, requests_per_s: float) -> int:
        """Groups that a rate needs with the headroom."""
        return observed.groups_for(requests_per_s * (1.0 + self.headroom))

    def needed_now(self, observed: Observation) -> Decision:
        """Groups that the load, the queue and late requests need at once."""
        now = self._for_load(observed)
        missed = self._missed(observed)
        if not missed:
            return now
        # What was taken back last has to arrive before it can help.
        more = 1 if observed.since_change_s >= observed.restore_s else 0
        wanted = min(observed.serving_groups + more, observed.groups)
        if wanted <= now.serving_groups:
            return now
        return Decision(serving_groups=wanted, reason=missed)

    def _for_load(self, observed: Observation) -> Decision:
        queued_per_s = observed.queue / CATCH_UP_S
        groups = self.needed(observed, observed.load_per_s + queued_per_s)
        waiting = f", {observed.queue} waiting" if observed.queue else ""
        return Decision(serving_groups=groups, reason=f"load {observed.load_per_s:.3g}/s{waiting}")

    def _missed(self, observed: Observation) -> str:
        """The limit that too few keep, in words; empty if none is missed."""
        shares = {"TTFT": observed.ttft_attainment, "TPOT": observed.tpot_attainment}
        for name, share in shares.items():
            if share is not None and share < self.target:
                return f"{name} met by {share:.1%}, below {self.target:.1%}"
        return ""

    def settled(self, observed: Observation, wanted: Decision) -> Decision:
        """`wanted`, within bounds, at least the present need, and not falling within the dwell."""
        return self._held(observed, wanted, self.needed_now(observed))

    def rescued(self, observed: Observation, wanted: Decision) -> Decision:
        """The same, but the present load takes groups back only once requests wait or are late;
        those that it needs without headroom stay, since requests would be late again.
        """
        late = observed.queue > 0 or bool(self._missed(observed))
        now = self._for_load(observed) if late else self._staying(observed)
        return self._held(observed, wanted, now)

    def _staying(self, observed: Observation) -> Decision:
        load_per_s = observed.load_per_s
        groups = min(observed.serving_groups, observed.groups_for(load_per_s))
        return Decision(serving_groups=groups, reason=f"load {load_per_s:.3g}/s needs them still")

    def _held(self, observed: Observation, wanted: Decision, now: Decision) -> Decision:
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
    """Longest time from a burst until the groups that it needs serve, in seconds.

    `look_s`: until the observed mean rate shows the whole load; `restore_s`: until a group is back.
    """
    return look_s + restore_s
