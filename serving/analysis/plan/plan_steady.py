"""A plan's own setting in the steady state: the chips, watts and dollars that the peak takes.

Fractional, without queues: a peak's rate over what the setting can serve within the target. By it
machines with other figures are compared in milliseconds.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from emulator.power.efficiency import TokenRates
from emulator.power.system_power import SystemPower
from emulator.power.token_cost import Prices
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_bill import fleet_cost, meter_watts
from serving.analysis.plan.plan_options import Option, OptionTerms
from serving.analysis.plan.plan_pools import decode_of, kv_transfer_ns, prefill_of
from serving.analysis.plan.plan_race import option_terms
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.steady_state.partitions import PartitionCandidate, declared_candidate
from serving.analysis.steady_state.replica import Replica


class Unable(StrEnum):
    """Why a setting does not serve."""

    NO_ROOM = "does not fit"
    TOO_SLOW = "too slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChips:
    """In service at the peak, a fraction of a replica too, and the mean watts of each."""

    chips: float
    chip_watts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyFleet:
    """Chips in service at the peak, their watts at the utility's meter, and dollars per million
    tokens of both kinds; None without prices.
    """

    chips: float
    watts: float
    dollars_per_million: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySetting:
    """A plan's partition, or unit of pools, under its traffic and target.

    Every replica has its highest load within the target; engines of prompts alone are busy for
    `prefill_busy_share` of the time, as in the plan. `own`: on the plan's machine.
    """

    terms: OptionTerms
    option: Option
    rates: TokenRates
    prices: Prices | None
    prefill_busy_share: float
    own: ServingChips | Unable

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The plan's."""
        question, setting = plan.question, plan.choice.setting
        terms = option_terms(question, setting.limits)
        made = cls(
            terms=terms,
            option=setting.option,
            rates=plan.rates,
            prices=question.prices,
            prefill_busy_share=_busy_share(terms, setting),
            own=Unable.NO_ROOM,
        )
        return replace(made, own=made.serving(terms.sweep.system))

    @property
    def system(self) -> SystemSpec:
        """The plan's machine."""
        return self.terms.sweep.system

    def on(self, system: SystemSpec) -> SteadyFleet | Unable:
        """The fleet if the machine were `system`; raises ConfigError for an impossible one."""
        serving = self.own if _steps_alike(system, self.system) else self.serving(system)
        if isinstance(serving, Unable):
            return serving
        chips, season = serving.chips, self.terms.sweep.season
        watts = meter_watts(system, serving.chip_watts, chips=chips, season=season)
        cost = fleet_cost(system, self.prices, self.rates, chips=chips, drawn_watts=watts)
        dollars = None if cost is None else cost.dollars_per_million_total
        return SteadyFleet(chips=chips, watts=watts, dollars_per_million=dollars)

    def serving(self, system: SystemSpec) -> ServingChips | Unable:
        """The chips on `system`, by its steps."""
        terms = replace(self.terms, sweep=replace(self.terms.sweep, system=system))
        decoding = self._replica(terms, self.option.candidate)
        pool = self.option.point.prefill
        if pool is None:
            return _alone(terms, decoding)
        prompts = self._replica(terms, pool)
        return _pooled(terms, prompts, decoding, busy_share=self.prefill_busy_share)

    def _replica(self, terms: OptionTerms, candidate: PartitionCandidate) -> Replica:
        return _replica_on(terms, self.option.point.precision, candidate)


def _busy_share(terms: OptionTerms, setting: Setting) -> float:
    """Of the engines of prompts alone; 1 without them."""
    pool, precision = setting.option.point.prefill, setting.option.point.precision
    if pool is None:
        return 1.0
    engine = prefill_of(terms, _replica_on(terms, precision, pool))
    assert engine is not None  # the plan has them
    rate_per_s = terms.rate_per_s / setting.replicas
    return min(1.0, rate_per_s / (pool.replicas * engine.requests_per_s))


def _replica_on(terms: OptionTerms, precision: str, candidate: PartitionCandidate) -> Replica:
    """The candidate's partition, with the room that the machine of `terms` has."""
    sweep = terms.sweep
    found = declared_candidate(
        sweep.system,
        sweep.model_at(precision),
        candidate.partition,
        terms=sweep.terms,
        across_units=sweep.asked.across_units,
    )
    return sweep.replica(precision, replace(found, replicas=candidate.replicas))


def _alone(terms: OptionTerms, replica: Replica) -> ServingChips | Unable:
    """Replicas that compute their own prompts."""
    option = terms.option((replica.precision, replica.candidate))
    if option is None:
        return Unable.NO_ROOM
    if not option.meets:
        return Unable.TOO_SLOW
    point, machine_chips = option.point, terms.sweep.system.chips.count
    in_use = point.candidate.replicas * option.replica_chips
    idle_watts = (machine_chips - in_use) * replica.idle_chip_watts
    return ServingChips(
        chips=terms.rate_per_s / option.requests_per_s * option.replica_chips,
        chip_watts=(machine_chips * point.chip_watts - idle_watts) / in_use,
    )


def _pooled(
    terms: OptionTerms, prompts: Replica, decoding: Replica, *, busy_share: float
) -> ServingChips | Unable:
    """Engines of prompts alone, and engines that decode."""
    tasks = ((each.precision, each.candidate) for each in (prompts, decoding))
    if not all(terms.fits(task) for task in tasks):
        return Unable.NO_ROOM
    prefill, decode = prefill_of(terms, prompts), decode_of(terms, decoding)
    if prefill is None or decode is None:
        return Unable.TOO_SLOW
    first_ns = prefill.prompt_ns + kv_transfer_ns(terms, prefill, decode)
    if terms.slo.ttft_s is not None and first_ns > terms.slo.ttft_s * NS_PER_S:
        return Unable.TOO_SLOW
    prefills = terms.rate_per_s / (busy_share * prefill.requests_per_s)
    decodes = terms.rate_per_s / decode.requests_per_s
    prefill_chips = prefills * prefill.candidate.partition.chips
    chips = prefill_chips + decodes * decode.candidate.partition.chips
    watts = decodes * decode.step.chip_watts_sum
    watts += prefills * busy_share * prefill.step.chip_watts_sum
    watts += (1 - busy_share) * prefill_chips * prompts.idle_chip_watts
    return ServingChips(chips=chips, chip_watts=watts / chips)


def _steps_alike(system: SystemSpec, other: SystemSpec) -> bool:
    """Whether steps cost the same on both: they differ beside their chips and links at most, and
    hold chips to the same watts.
    """
    beside = replace(
        system,
        power=other.power,
        pue=other.pue,
        cpus=other.cpus,
        provisioned_watts=other.provisioned_watts,
        all_in_watts_per_chip=other.all_in_watts_per_chip,
    )
    return beside == other and (
        SystemPower(system).chip_cap_watts == SystemPower(other).chip_cap_watts
    )
