"""Which size of which partition a plan takes: the smallest that a simulation lets pass.

Size is the chips in service. The steady state proposes partitions and a first size; simulation
settles for each how many replicas it needs, and the one with the fewest chips wins. A plan comes
with the next smaller one, which does not meet the target or cannot hold the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.model import ConfigError
from emulator.units import NS_PER_S
from serving.planning.plan_check import Check, CheckTerms
from serving.planning.plan_demand import Demand
from serving.planning.plan_options import (
    Option,
    Progress,
    next_to_try,
    ranked_options,
    replicas_below,
)
from serving.planning.plan_search import smallest_passing
from serving.planning.plan_workers import CheckWorkers, SizeTask
from serving.planning.slo import Slo
from serving.planning.sweep import Sweep

GIVE_UP: Final = 4
"""So many times the replicas of the steady state, and a few more, are the most that is tried."""
_A_FEW: Final = 8
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan's size, the next smaller one, and everything that was simulated.

    `smaller` is None where nothing smaller holds the model; `smaller_words` says which it is.
    """

    option: Option
    check: Check
    smaller: Check | None
    smaller_words: str
    tried: tuple[Check, ...]
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """How far a search goes: partitions to simulate, and the tokens of one simulation.

    Raises ConfigError for a number below 1.
    """

    tries: int = 3
    tokens_max: int = 1_500_000

    def __post_init__(self) -> None:
        for name in ("tries", "tokens_max"):
            if getattr(self, name) < 1:
                raise ConfigError(field=name, value=getattr(self, name), expected="at least 1")


def choose(
    sweep: Sweep,
    demand: Demand,
    slo: Slo,
    terms: CheckTerms,
    search: SearchTerms,
    workers: CheckWorkers,
    progress: Progress,
) -> Choice:
    """Find the size. Raises ConfigError when none of the partitions tried meets the target."""
    options = ranked_options(sweep, demand, slo, progress)
    promising = [option for option in options if option.meets]
    if not promising:
        raise _out_of_reach(options, slo)
    sizes = _Sizes(sweep, demand, slo, terms, workers, progress)
    light = [each for each in promising if sizes.tokens(each) <= search.tokens_max]
    for option in promising[: search.tries]:
        if option not in light and light:
            progress(f"left out, {sizes.tokens(option):,} tokens to simulate: {_name(option)}")
    found: tuple[Option, int] | None = None
    for option in (light or promising)[: search.tries]:
        if found is None:
            guess, most = option.replicas, GIVE_UP * option.replicas + _A_FEW
        else:
            guess = most = replicas_below(option, _chips(found))
        replicas = sizes.smallest(option, guess=guess, most=most) if most else None
        found = (option, replicas) if replicas else found
    if found is None:
        raise _never_met(sizes.tried, slo)
    found, smaller, words = _next_smaller(found, options, sizes)
    option, replicas = found
    return Choice(
        option=option,
        check=sizes.check(option, [replicas])[0],
        smaller=smaller,
        smaller_words=words,
        tried=tuple(sizes.tried),
        options=options,
    )


def _next_smaller(
    found: tuple[Option, int], options: Sequence[Option], sizes: "_Sizes"
) -> tuple[tuple[Option, int], Check | None, str]:
    """The plan, which may turn out smaller, and what is below it, simulated to its end."""
    while found[1] == 1:
        rival = next_to_try(options, below_chips=_chips(found))
        if rival is None:
            return found, None, _no_room(sizes.sweep, sizes.demand, _chips(found) - 1)
        most = replicas_below(rival, _chips(found))
        replicas = sizes.smallest(rival, guess=most, most=most)
        if replicas is None:
            words = "the most that a partition of fewer chips serves"
            return found, sizes.to_the_end(rival, most), words
        found = (rival, replicas)
    option, replicas = found
    return found, sizes.to_the_end(option, replicas - 1), "one replica less"


class _Sizes:
    """Every size that was simulated, each once."""

    def __init__(
        self,
        sweep: Sweep,
        demand: Demand,
        slo: Slo,
        terms: CheckTerms,
        workers: CheckWorkers,
        progress: Progress,
    ) -> None:
        self.sweep = sweep
        self.demand = demand
        self.tried: list[Check] = []
        self._slo = slo
        self._terms = terms
        self._workers = workers
        self._progress = progress
        self._known: dict[tuple[Option, int], Check] = {}
        outputs = demand.peak.output_tokens
        self._mean_output = float(outputs.mean())
        self._long_output = float(np.percentile(outputs, 90))

    def lead_s(self, option: Option) -> float:
        """How long a request with a long reply stays: what a run needs to become steady."""
        return (option.prompt_ns + self._long_output * option.point.tpot_ns) / NS_PER_S

    def tokens(self, option: Option) -> int:
        """Roughly what one check of an option makes, about its proposed size."""
        rate_per_s = self.demand.peak_rate_per_s / option.replicas
        requests = self._terms.judged + 2 * rate_per_s * self.lead_s(option)
        return round(requests * self._mean_output)

    def smallest(self, option: Option, *, guess: int, most: int) -> int | None:
        """The fewest replicas that meet the target, if so many do."""
        return smallest_passing(
            lambda counts: [check.meets for check in self.check(option, counts)],
            guess=guess,
            most=most,
            width=self._workers.count,
        )

    def check(self, option: Option, counts: Sequence[int]) -> list[Check]:
        """So many replicas, each size at once."""
        new = [count for count in counts if (option, count) not in self._known]
        if new:
            sizes = " and ".join(f"{count:,}" for count in new)
            self._progress(f"simulating {sizes} replicas of {_name(option)}")
        checks = self._workers.check([self._task(option, count, self._terms) for count in new])
        for count, check in zip(new, checks, strict=True):
            self._known[option, count] = check
            self.tried.append(check)
            self._progress(f"  {count:,} replicas: {_verdict(check)}")
        return [self._known[option, count] for count in counts]

    def to_the_end(self, option: Option, count: int) -> Check:
        """A size that failed, run until all its percentiles are known."""
        task = self._task(option, count, replace(self._terms, early_end=False))
        (check,) = self._workers.check([task])
        return check

    def _task(self, option: Option, count: int, terms: CheckTerms) -> SizeTask:
        return SizeTask(
            sweep=self.sweep,
            precision=option.point.precision,
            candidate=option.candidate,
            demand=self.demand,
            slo=self._slo,
            terms=terms,
            replicas=count,
            lead_s=self.lead_s(option),
        )


def _chips(found: tuple[Option, int]) -> int:
    return found[0].replica_chips * found[1]


def _name(option: Option) -> str:
    partition = option.candidate.partition
    return f"{partition.chips} chips, tp {partition.tp}, ep {partition.ep}, lnc {partition.lnc}"


def _verdict(check: Check) -> str:
    parts = [
        f"{term.name.upper()} {100 * term.share:.4g} % of {term.percentile:g} %"
        for term in check.terms
    ]
    return f"{'meets' if check.meets else 'does not meet'} the target: {', '.join(parts)}"


def _no_room(sweep: Sweep, demand: Demand, chips: int) -> str:
    """Why no partition of fewer chips is there."""
    model = sweep.model_at(sweep.precisions[0])
    longest = int((demand.peak.prompt_tokens + demand.peak.output_tokens).max())
    if not chips:
        return "there is none: the plan is one chip"
    usable = chips * sweep.system.chip.hbm_bytes * sweep.terms.utilization / _GIB
    return (
        f"the next smaller one cannot hold the model: on {chips} chips its weights alone are "
        f"{model.weight_bytes / _GIB:,.1f} GiB of {usable:,.1f} GiB, and reserves, and the "
        f"{longest:,} tokens of the longest request on every rank come on top"
    )


def _out_of_reach(options: Sequence[Option], slo: Slo) -> ConfigError:
    if not options:
        expected = "shorter requests: no partition has room for the KV of a mean one"
        return ConfigError(field="slo", value=slo, expected=expected)
    tpot_ms = min(option.point.tpot_ns for option in options) / 1e6
    ttft_ms = min(option.prompt_ns for option in options) / 1e6
    return ConfigError(
        field="slo",
        value=slo,
        expected=f"what an idle replica can do: at best TPOT {tpot_ms:.3g} ms, and TTFT "
        f"{ttft_ms:.3g} ms for a prompt at that percentile",
    )


def _never_met(tried: Sequence[Check], slo: Slo) -> ConfigError:
    best = max(tried, key=lambda check: min(term.share for term in check.terms))
    return ConfigError(
        field="slo",
        value=slo,
        expected=f"a looser one, or more --tries: {best.replicas} replicas of "
        f"{best.candidate.partition.chips} chips came closest, {_verdict(best)}",
    )
