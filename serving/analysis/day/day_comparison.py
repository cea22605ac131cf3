"""Policies compared on the same requests at several loads, beside three baselines: `never`, the
oracle and the best fixed split (the fewest serving groups that keep the target).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.day.day_result import DayMachine, DayResult
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.day_walk import DayDemand, WalkTerms, day_demand, walk
from serving.analysis.day.training_yield import GroupHandover
from serving.policy.day_night.policy_text import parse_policy

NEVER: Final = "never"
ORACLE: Final = "oracle:headroom=0"
"""Without headroom: it knows the demand, and at capacity the target is just kept."""
PEAK_SHARE_MAX: Final = 2.0
"""Of the capacity; above, every policy fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayQuestion:
    """A part of a trace, from `begin_s` on, under policies as a user writes them.

    `peak_shares` of the capacity are the trace's highest rates. A trace without an earlier part has
    its last day as history (assumed), or, when `cold`, none. Raises ConfigError for a part outside
    of the trace, or an unreadable policy.
    """

    trace: DayTrace
    begin_s: float
    length_s: float
    policies: tuple[str, ...]
    peak_shares: tuple[float, ...]
    terms: WalkTerms
    cold: bool = False

    def __post_init__(self) -> None:
        """Fails now rather than after minutes of simulation."""
        if not self.policies or not self.peak_shares:
            raise ConfigError("policies", "none", "a policy and a load")
        for share in self.peak_shares:
            if not 0 < share <= PEAK_SHARE_MAX:
                expected = f"above 0 %, at most {PEAK_SHARE_MAX:.0%}"
                raise ConfigError("peak", f"{share:.0%}", expected)
        demand = day_demand(
            self.trace, begin_s=self.begin_s, length_s=self.length_s, terms=self.terms
        )
        for text in self.policies:
            parse_policy(text, future=demand.future(self.terms.look_s))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadComparison:
    """One load: asked policies and baselines; the best split took `splits_tried` walks to find."""

    peak_share: float
    peak_per_s: float
    demand: DayDemand
    results: tuple[DayResult, ...]
    fixed: DayResult
    splits_tried: int

    def result(self, policy: str) -> DayResult:
        """Of a policy by its text; raises KeyError."""
        for each in self.results:
            if each.policy == policy:
                return each
        raise KeyError(policy)

    @property
    def everything(self) -> tuple[DayResult, ...]:
        """Asked policies and baselines, each once, the best fixed split last."""
        others = (each for each in self.results if each.policy != self.fixed.policy)
        return (*others, self.fixed)

    @property
    def never(self) -> DayResult:
        """The baseline in which all groups serve."""
        return self.result(NEVER)

    @property
    def oracle(self) -> DayResult:
        """The baseline that knows the demand."""
        return next(each for each in self.results if each.policy.partition(":")[0] == "oracle")


def compare(
    question: DayQuestion, machine: DayMachine, handover: GroupHandover
) -> tuple[LoadComparison, ...]:
    """Walk every policy at every load; raises ConfigError for an unreadable one."""
    return tuple(_at_load(question, machine, handover, share) for share in question.peak_shares)


def _at_load(
    question: DayQuestion, machine: DayMachine, handover: GroupHandover, peak_share: float
) -> LoadComparison:
    peak_per_s = peak_share * machine.capacity_per_s
    demand = day_demand(
        question.trace.scaled(peak_per_s),
        begin_s=question.begin_s,
        length_s=question.length_s,
        terms=question.terms,
        cold=question.cold,
    )
    future = demand.future(question.terms.look_s)

    def result(text: str) -> DayResult:
        policy = parse_policy(text, future=future)
        walked = walk(demand, machine.curve, machine.trained, handover, policy, question.terms)
        return DayResult(machine=machine, walk=walked, describes=policy.describe())

    texts = [*question.policies]
    for baseline in (NEVER, ORACLE):
        kind = baseline.partition(":")[0]
        if not any(text.partition(":")[0] == kind for text in texts):
            texts.append(baseline)
    results = [result(text) for text in dict.fromkeys(texts)]
    splits: dict[int, DayResult] = {}

    def split(groups: int) -> DayResult:
        if groups not in splits:
            splits[groups] = result(f"fixed:{groups}")
        return splits[groups]

    fixed = split(_fewest(split, machine.groups))
    return LoadComparison(
        peak_share=peak_share,
        peak_per_s=peak_per_s,
        demand=demand,
        results=tuple(results),
        fixed=fixed,
        splits_tried=len(splits),
    )


def _fewest(split: Callable[[int], DayResult], groups: int) -> int:
    """The fewest serving groups that keep the target, by bisection; all where none do.

    Attainment rises with the groups: the share in time falls with their rate.
    """
    low, high = 1, groups
    while low < high:
        middle = (low + high) // 2
        if split(middle).keeps_target:
            high = middle
        else:
            low = middle + 1
    return low
