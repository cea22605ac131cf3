"""A plan's partition and size: the smallest that passes simulation.

The steady state proposes partitions and a first size; simulation finds the replicas that each
needs, and the fewest chips win. The next smaller plan, which fails, is shown beside it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.power.token_cost import Prices
from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from serving.analysis.plan.night import Day
from serving.analysis.plan.plan_check import Check, CheckTerms, SizeTask, check_size
from serving.analysis.plan.plan_demand import PlanDemand
from serving.analysis.plan.plan_options import Option, Options, replicas_below, strongest
from serving.analysis.plan.plan_search import smallest_passing
from serving.analysis.steady_state.sweep import Sweep
from serving.simulator import SimulationWorkers

Found = tuple[Option, int]
"""An option with its replicas."""
Progress = Callable[[str], None]

GIVE_UP: Final = 4
"""Most replicas that are tried, in those of the steady state, plus a few."""
_A_FEW: Final = 8
SIZES_AT_ONCE: Final = 2
"""Tried in parallel, however many workers there are: what is tried is then the same everywhere."""
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan's size, the next smaller one (None: none holds the model), and all tried sizes."""

    check: Check
    smaller: Check | None
    smaller_words: str
    tried: tuple[Check, ...]
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """Partitions to simulate, and the most tokens of one simulation; raises ConfigError below 1."""

    tries: int
    tokens_max: int

    def __post_init__(self) -> None:
        for name in ("tries", "tokens_max"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A planning question; `assumptions` name the sources chosen for the machine's figures."""

    sweep: Sweep
    demand: PlanDemand
    slo: Slo
    day: Day
    prices: Prices | None = None
    check: CheckTerms
    search: SearchTerms
    disaggregated: bool = False
    assumptions: tuple[str, ...] = ()


def choose(question: PlanQuestion, workers: SimulationWorkers, progress: Progress) -> Choice:
    """Find the size. Raises ConfigError when no tried partition meets the target."""
    seats = question.check.schedulers.max_num_seqs
    options = Options(question.sweep, question.demand, question.slo, seats=seats)
    promising = [option for option in options.smallest_first() if option.meets]
    if not promising:
        raise _out_of_reach(options.known(), question.slo)
    sizes = SimulatedSizes(question, workers, progress)
    found = _first_that_meets(promising, sizes, question.search.tries)
    found = _challenged(found, options, sizes, question.search.tries)
    found, smaller, words = _next_smaller(found, options, sizes)
    option, replicas = found
    return Choice(
        check=sizes.check(option, [replicas])[0],
        smaller=smaller,
        smaller_words=words,
        tried=tuple(sizes.tried),
        options=options.known(),
    )


def most_tried(replicas: int) -> int:
    """The largest size that is simulated where about `replicas` are expected."""
    return GIVE_UP * replicas + _A_FEW


def _first_that_meets(promising: Sequence[Option], sizes: "SimulatedSizes", tries: int) -> Found:
    light = [option for option in promising if sizes.is_light(option)]
    for option in (light or promising)[:tries]:
        most = most_tried(option.replicas)
        replicas = sizes.smallest(option, guess=option.replicas, most=most)
        if replicas is not None:
            return option, replicas
    raise _never_met(sizes.tried, sizes.question.slo)


def _challenged(found: Found, options: Options, sizes: "SimulatedSizes", tries: int) -> Found:
    """The plan, after partitions that might need fewer chips were tried, the strongest first."""
    tried = {found[0]}
    while len(tried) < tries:
        chips = _chips(found)
        rivals = [each for each in options.below(chips) if each not in tried]
        rival = strongest(filter(sizes.is_light, rivals), below_chips=chips)
        if rival is None or not rival.meets:
            break
        most = replicas_below(rival, chips)
        if most * rival.requests_per_s < sizes.question.demand.peak_rate_per_s:
            break
        tried.add(rival)
        replicas = sizes.smallest(rival, guess=most, most=most)
        found = (rival, replicas) if replicas is not None else found
    return found


def _next_smaller(
    found: Found, options: Options, sizes: "SimulatedSizes"
) -> tuple[Found, Check | None, str]:
    """The plan, and the next smaller one simulated to its end.

    Below several replicas: one less. Below one: the partition of fewer chips that takes the most,
    and the largest replica of fewer chips, which answers sooner; one that passes becomes the plan,
    else the larger is shown.
    """
    while found[1] == 1:
        chips = _chips(found)
        rivals = below_one_replica(options, chips)
        if not rivals:
            return found, None, _no_room(sizes.question, chips - 1)
        passing = _first_passing(rivals, sizes, below_chips=chips)
        if passing is None:
            sized = [(rival, replicas_below(rival, chips)) for rival in rivals]
            shown = max(sized, key=_chips)
            return found, sizes.to_the_end(*shown), rivals[shown[0]]
        found = passing
    option, replicas = found
    return found, sizes.to_the_end(option, replicas - 1), "one replica less"


def below_one_replica(options: Options, chips: int) -> dict[Option, str]:
    """Alternatives to one replica of `chips` chips, with their descriptions."""
    smaller = options.below(chips)
    largest = max((each.replica_chips for each in smaller), default=0)
    near = [each for each in smaller if each.replica_chips == largest]
    words = {
        strongest(near, below_chips=chips): "the largest replica of fewer chips",
        strongest(smaller, below_chips=chips): (
            "of all with fewer chips the one that takes the most"
        ),
    }
    return {option: said for option, said in words.items() if option is not None}


def _first_passing(
    rivals: Iterable[Option], sizes: "SimulatedSizes", *, below_chips: int
) -> Found | None:
    for rival in rivals:
        most = replicas_below(rival, below_chips)
        replicas = sizes.smallest(rival, guess=most, most=most)
        if replicas is not None:
            return rival, replicas
    return None


class SimulatedSizes:
    """Every simulated size, each once."""

    def __init__(
        self, question: PlanQuestion, workers: SimulationWorkers, progress: Progress
    ) -> None:
        self.question = question
        self.tried: list[Check] = []
        self._workers = workers
        self._progress = progress
        self._known: dict[tuple[Option, int], Check] = {}
        outputs = question.demand.peak.output_tokens
        self._mean_output = float(outputs.mean())
        self._long_output = float(np.percentile(outputs, 90))

    def lead_s(self, option: Option, replicas: int) -> float:
        """Time for a run to become steady: that of a request with a long reply."""
        tpot_ns = option.tpot_ns_at(self.question.demand.peak_rate_per_s / replicas)
        return (option.prompt_ns + self._long_output * tpot_ns) / NS_PER_S

    def is_light(self, option: Option) -> bool:
        """Whether a check of the proposed size stays within the allowed tokens."""
        rate_per_s = self.question.demand.peak_rate_per_s / option.replicas
        requests = self.question.check.judged + 2 * rate_per_s * self.lead_s(
            option, option.replicas
        )
        return requests * self._mean_output <= self.question.search.tokens_max

    def smallest(self, option: Option, *, guess: int, most: int) -> int | None:
        """The fewest replicas, up to `most`, that meet the target; None without."""
        return smallest_passing(
            lambda counts: [check.meets for check in self.check(option, counts)],
            guess=guess,
            most=most,
            width=SIZES_AT_ONCE,
        )

    def check(self, option: Option, counts: Sequence[int]) -> list[Check]:
        """Each of the sizes, simulated at most once."""
        new = [count for count in counts if (option, count) not in self._known]
        if new:
            sizes = " and ".join(f"{count:,}" for count in new)
            self._progress(f"simulating {sizes} replica(s) of {_name(option)}")
        checks = self._workers.map(
            check_size, [self._task(option, count, self.question.check) for count in new]
        )
        for count, check in zip(new, checks, strict=True):
            self._known[option, count] = check
            self.tried.append(check)
            self._progress(f"  {count:,}: {_verdict(check)}")
        return [self._known[option, count] for count in counts]

    def to_the_end(self, option: Option, count: int) -> Check:
        """A failed size, run until all its percentiles are known."""
        task = self._task(option, count, replace(self.question.check, early_end=False))
        (check,) = self._workers.map(check_size, [task])
        return check

    def _task(self, option: Option, count: int, terms: CheckTerms) -> SizeTask:
        return SizeTask(
            sweep=self.question.sweep,
            precision=option.point.precision,
            candidate=option.candidate,
            demand=self.question.demand,
            slo=self.question.slo,
            terms=terms,
            replicas=count,
            lead_s=self.lead_s(option, count),
            most_requests_per_s=option.most_requests_per_s,
        )


def _chips(found: Found) -> int:
    return found[0].replica_chips * found[1]


def _name(option: Option) -> str:
    partition = option.candidate.partition
    return f"{partition.chips} chip(s), {partition.division}"


def _verdict(check: Check) -> str:
    parts = [
        f"{term.name.upper()} {100 * term.share:.4g} % of {term.percentile:g} %"
        for term in check.terms
    ]
    if check.load_share > 1:
        parts.append(f"{100 * check.load_share:.4g} % of the load that it can take")
    return f"{'meets' if check.meets else 'does not meet'} the target: {', '.join(parts)}"


def _no_room(question: PlanQuestion, chips: int) -> str:
    sweep, demand = question.sweep, question.demand
    model = sweep.model_at(sweep.precisions[0])
    longest = int((demand.peak.prompt_tokens + demand.peak.output_tokens).max())
    if not chips:
        return "there is none: the plan is one chip"
    usable = chips * sweep.system.chip.hbm_bytes * sweep.terms.utilization / _GIB
    return (
        f"the next smaller one cannot hold the model: nothing of up to {chips} chips has room; the "
        f"weights alone are {model.weight_bytes / _GIB:,.1f} of the {usable:,.1f} GiB that "
        f"{chips} may use, beside each chip's reserves and the {longest:,} tokens of the longest "
        "request on every rank"
    )


def _out_of_reach(options: Sequence[Option], slo: Slo) -> ConfigError:
    if not options:
        expected = "shorter requests: no partition has room for the KV of a mean one"
        return ConfigError("slo", slo, expected)
    tpot_ms = min(option.alone_ns for option in options) / 1e6
    ttft_ms = min(option.prompt_ns for option in options) / 1e6
    return ConfigError(
        "slo",
        slo,
        f"what an idle replica can do: at best TPOT {tpot_ms:.3g} ms, and TTFT "
        f"{ttft_ms:.3g} ms for a prompt at that percentile",
    )


def _never_met(tried: Sequence[Check], slo: Slo) -> ConfigError:
    best = max(tried, key=lambda check: min(term.share for term in check.terms))
    return ConfigError(
        "slo",
        slo,
        f"a looser one, or more --tries: {best.replicas} replicas of "
        f"{best.candidate.partition.chips} chips came closest, {_verdict(best)}",
    )
