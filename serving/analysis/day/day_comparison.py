"""Policies compared on the same requests at several loads, beside three baselines: `never`, the
best fixed split and the oracle.

What is compared is `DayResult.value`, of days that keep `kept_share` of the requests in time: what
the target asks for, or, where even `never` misses it, the same share of what `never` keeps, which
is the most that can be. This holds for the splits and the oracle as for the policies. The worst 5
minutes are shown beside it.
"""

from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.day.day_demand import DayDemand, WalkTerms, day_demand
from serving.analysis.day.day_oracle import ORACLE, day_oracle
from serving.analysis.day.day_result import DayMachine, DayResult
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.day_walk import walk, walk_choices
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.training_yield import GroupHandover
from serving.policy.day_night.policy import Fixed, Policy
from serving.policy.day_night.policy_text import parse_policy
from serving.policy.day_night.schedule import SchedulePolicy

NEVER: Final = "never"
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
        day_demand(self.trace, begin_s=self.begin_s, length_s=self.length_s, terms=self.terms)
        for text in self.policies:
            if text != ORACLE:
                zoned_policy(text, self.trace.zone)


def zoned_policy(text: str, zone: str) -> Policy:
    """A policy as a user writes it; raises ConfigError, also for hours without their zone."""
    policy = parse_policy(text)
    if isinstance(policy, SchedulePolicy) and "@" not in text:
        expected = f"the time zone of its hours too, such as {text}@{zone}"
        raise ConfigError("policy", text, expected)
    return policy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadComparison:
    """One load: asked policies and baselines.

    Attributes:
        peak_per_s: of all machines.
        demand: of one.
        kept_share: of the requests, in time in every day that is compared.
        results: of the asked policies, `never` and the oracle.
        fixed: the split with the highest value.
        oracle_bound: a value that no plan exceeds; see DayOracle.
    """

    peak_share: float
    peak_per_s: float
    demand: DayDemand
    kept_share: float
    results: tuple[DayResult, ...]
    fixed: DayResult
    oracle_bound: float | None

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
        return self.result(ORACLE)

    @property
    def oracle_gap(self) -> float | None:
        """Share of the bound that the oracle's value stays below it; None without a bound."""
        if self.oracle_bound is None:
            return None
        return max(0.0, 1.0 - self.oracle.value / self.oracle_bound) if self.oracle_bound else 0.0

    def compares(self, result: DayResult) -> bool:
        """Whether a day keeps enough requests in time."""
        return result.slo_attainment >= self.kept_share


def compare(
    question: DayQuestion, machine: DayMachine, handover: GroupHandover, *, oracle: bool = True
) -> tuple[LoadComparison, ...]:
    """Walk every policy at every load; raises ConfigError for an unreadable one.

    Without the `oracle` a question may not ask for it.
    """
    outcomes = LookOutcomes(
        trained=machine.trained,
        handover=handover,
        group_idle_watts=machine.curve.idle_watts,
        interval_s=question.terms.interval_s,
        look_s=question.terms.look_s,
    )
    return tuple(
        _at_load(question, machine, outcomes, share, oracle=oracle)
        for share in question.peak_shares
    )


def share_to_keep(never: DayResult) -> float:
    """Of the requests, in a day that is compared with others."""
    required, most = never.machine.curve.required_share, never.slo_attainment
    return required if most >= required else required * most


def _at_load(
    question: DayQuestion,
    machine: DayMachine,
    outcomes: LookOutcomes,
    peak_share: float,
    *,
    oracle: bool,
) -> LoadComparison:
    peak_per_s = peak_share * machine.capacity_per_s
    demand = day_demand(
        question.trace.scaled(peak_per_s),
        begin_s=question.begin_s,
        length_s=question.length_s,
        terms=question.terms,
        cold=question.cold,
    )

    def result(text: str) -> DayResult:
        policy = parse_policy(text)
        walked = walk(demand, machine.curve, outcomes, policy)
        described = policy.describe()
        return DayResult(machine=machine, walk=walked, policy=str(policy), describes=described)

    texts = dict.fromkeys((*question.policies, NEVER))
    walked = {text: result(text) for text in texts if text != ORACLE}
    kept_share = share_to_keep(walked[NEVER])

    def split(groups: int) -> DayResult:
        policy = Fixed(serving_groups=groups)
        going = walk_choices(demand, machine.curve, outcomes, lambda *_: groups)
        described = policy.describe()
        return DayResult(machine=machine, walk=going, policy=str(policy), describes=described)

    splits = [split(groups) for groups in range(outcomes.handover.groups_min, machine.groups + 1)]
    fixed = max(
        (each for each in splits if each.slo_attainment >= kept_share),
        key=lambda each: each.value,
        default=splits[-1],
    )
    bound = None
    if oracle:
        known = (*walked.values(), fixed)
        best = day_oracle(demand, machine, outcomes, kept_share=kept_share, known=known)
        walked[ORACLE], bound = best.result, best.bound
    return LoadComparison(
        peak_share=peak_share,
        peak_per_s=machine.machines * peak_per_s,
        demand=demand,
        kept_share=kept_share,
        results=tuple(walked[text] for text in dict.fromkeys((*texts, *walked))),
        fixed=fixed,
        oracle_bound=bound,
    )
