"""The policy of a queueing model: as many groups as keep most requests from waiting (Erlang C).

Each group is a server of the queue M/M/n that serves what it can within the target. The share of
requests that wait is that of A. K. Erlang's formula, from the recursion of his loss formula:
B(0) = 1, B(n) = aB(n - 1) / (n + aB(n - 1)), C(n) = B(n) / (1 - (a/n)(1 - B(n))), a being the load
in groups. *Assumed*: the rate of the last bucket, or the present one, if higher, goes on.
"""

from dataclasses import dataclass, field
from itertools import count

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.options import options_text
from serving.policy.day_night.policy import Decision, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ErlangPolicy(Policy):
    """Lends what a queue does not need. Raises ConfigError for values out of range.

    `waiting`: share of the requests that may wait.
    """

    name = "erlang"
    weighs_demand = True

    waiting: float = 0.05
    guard: Guard = field(default_factory=lambda: Guard(headroom=0.0))

    def __post_init__(self) -> None:
        if not 0 < self.waiting < 1:
            raise ConfigError("waiting", self.waiting, "a share, between 0 and 1")

    def __str__(self) -> str:
        options = options_text(self, ErlangPolicy())
        return f"{self.name}:{options}" if options else self.name

    def decide(self, observed: Observation) -> Decision:
        """Enough groups for the formula, at least those of the present load."""
        rates = observed.history.requests_per_s
        last_per_s = float(rates[-1]) if len(rates) else 0.0
        rate_per_s = max(last_per_s, observed.load_per_s)
        load = rate_per_s / observed.capacity_per_group_per_s
        groups = observed.groups
        if load < groups:
            groups = min(groups, servers_for(load, waiting=self.waiting))
        reason = f"a load of {load:.3g} groups"
        return self.guard.settled(observed, Decision(serving_groups=groups, reason=reason))

    def describe(self) -> str:
        """State what it does and assumes."""
        return (
            f"{self}: groups by Erlang's formula, each one a server, so that at most "
            f"{self.waiting:.3g} of the requests wait; assumed: the present rate goes on"
        )


def servers_for(load: float, *, waiting: float) -> int:
    """Fewest servers of which at most the share `waiting` of the arrivals finds none free.

    `load`: arrivals in the time that one server takes for one.
    """
    blocked = 1.0
    for servers in count(1):
        blocked = load * blocked / (servers + load * blocked)
        if load < servers and blocked <= waiting * (1 - load / servers * (1 - blocked)):
            return servers
    raise AssertionError
