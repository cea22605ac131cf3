"""A policy against the oracle and the best fixed split, day by day, the unfriendly days first.

    python -m tests.benchmarks day_policies [--policy TEXT] [--seeds A,B] [--weeks] [--draws N]

gpt-oss-120b served and trained on a Trn3 UltraServer within TTFT 1 s and TPOT 30 ms, at 50, 70 and
90 %, on the days of `policy_days`. Seeds 0 and 1 are those by which `demand` was chosen; others say
how it does. Each cell: the share in time (F: too few, and no value counts), in the worst 5 minutes,
value over the oracle's and over the best fixed split's.

The best split is that of the day itself, which is not known before. So the last lines say how often
a split that was the best on up to four days before reaches the same bar, by the share of their
requests that it was to keep. Before a day that begins its trace there is another draw of the
trace's last one: of a trace of one day, of the day itself. With `--draws`, also of a split that
knows more than any policy can: of all numbers the one that reaches the bar on most of N other draws
of a made-up day's own kind.
"""

import argparse
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from serving.analysis.day.day_comparison import (
    DayQuestion,
    LoadComparison,
    compare,
    share_to_keep,
)
from serving.analysis.day.day_demand import DayDemand, WalkTerms, day_demand
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import DAY_S
from serving.analysis.day.day_walk import walk_choices
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.virtual_day import VirtualDay, virtual_day
from serving.commands import day as day_command
from tests.benchmarks.policy_days import SYNTHETIC, TRACES, PolicyDay, recorded_days, synthetic_day
from tests.serving.commands.small_day import parsed

LENGTHS: Final = TRACES / "azure2023/AzureLLMInferenceTrace_conv.csv"
LOADS: Final = (0.5, 0.7, 0.9)
BAR_OF_ORACLE, BAR_OF_SPLIT = 0.90, 0.97
DAYS_BEFORE: Final = 4
KEPT_BEFORE: Final = (0.99, 0.994, 0.997, 0.999)
BEFORE_SEED: Final = 1
"""Of the requests of the days before, which are other ones than those of the day."""
DRAWS_FROM: Final = 100
"""The seed of the first other draw of a kind."""


def simulated_machine() -> VirtualDay:
    """The guide's machine, its replica simulated."""
    lengths = ("--lengths", str(LENGTHS)) if LENGTHS.exists() else ()
    asked = ("--model", "gpt-oss-120b", "--system", "trn3-nl72x2", *lengths)
    return virtual_day(day_command.settings_of(parsed(*asked, "--policy", "never", "--peak", "70")))


def benchmark_days(seeds: Sequence[int], *, weeks: bool) -> Iterator[PolicyDay]:
    """Made-up ones of every seed, then recorded ones."""
    for name in SYNTHETIC:
        for seed in seeds:
            yield synthetic_day(name, seed)
    for each in recorded_days():
        if weeks or each.days == 1:
            yield each


def loads_of(day: PolicyDay, policy: str, on: VirtualDay) -> tuple[LoadComparison, ...]:
    """The day at each load."""
    question = DayQuestion(
        trace=day.trace,
        begin_s=day.first_day * DAY_S,
        length_s=day.days * DAY_S,
        policies=(policy,),
        peak_shares=LOADS,
        terms=WalkTerms(),
    )
    return compare(question, on.machine, on.handover)


class Splits:
    """Fixed splits of a machine, walked."""

    def __init__(self, on: VirtualDay) -> None:
        self._machine = on.machine
        self._outcomes = LookOutcomes(
            trained=on.machine.trained,
            handover=on.handover,
            group_idle_watts=on.machine.curve.idle_watts,
            interval_s=WalkTerms().interval_s,
            look_s=WalkTerms().look_s,
        )

    def walked(self, demand: DayDemand, groups: int) -> DayResult:
        """Of so many serving groups."""
        walk = walk_choices(demand, self._machine.curve, self._outcomes, lambda *_: groups)
        name = f"fixed:{groups}"
        return DayResult(machine=self._machine, walk=walk, policy=name, describes=name)

    def all_of(self, demand: DayDemand) -> dict[int, DayResult]:
        """Every split by its serving groups."""
        numbers = range(self._outcomes.handover.groups_min, self._machine.groups + 1)
        return {groups: self.walked(demand, groups) for groups in numbers}

    def of_kind(self, name: str, share: float, draws: int) -> tuple[int, float]:
        """The number of groups that reaches BAR_OF_SPLIT on most draws of a made-up kind at a load,
        and on which share of them it does.
        """
        reached = np.zeros(self._machine.groups + 1)
        for seed in range(DRAWS_FROM, DRAWS_FROM + draws):
            day = synthetic_day(name, seed)
            demand = day_demand(
                day.trace.scaled(share * self._machine.capacity_per_s),
                begin_s=day.first_day * DAY_S,
                length_s=DAY_S,
                terms=WalkTerms(),
            )
            seen = self.all_of(demand)
            kept_share = share_to_keep(seen[self._machine.groups])
            values = {
                groups: one.value
                for groups, one in seen.items()
                if one.slo_attainment >= kept_share
            }
            bar = BAR_OF_SPLIT * max(values.values())
            reached[[groups for groups, value in values.items() if value >= bar]] += 1
        return int(reached.argmax()), float(reached.max()) / draws

    def chosen_before(self, day: PolicyDay, load: LoadComparison) -> tuple[DayResult, ...]:
        """For each of KEPT_BEFORE the day under the split of the highest value of the days before
        that kept so many requests; under all groups where none did. A trace that begins with the
        day has its last day before it, as the policies are shown.
        """
        before_s = min(day.first_day, DAYS_BEFORE) * DAY_S
        begin_s = day.first_day * DAY_S - before_s
        if not before_s:
            before_s = min(day.trace.length_s, DAY_S)
            begin_s = day.trace.length_s - before_s
        past = day_demand(
            day.trace.scaled(load.peak_per_s),
            begin_s=begin_s,
            length_s=before_s,
            terms=WalkTerms(seed=BEFORE_SEED),
        )
        seen, most = self.all_of(past), self._machine.groups

        def best(kept: float) -> int:
            enough = [groups for groups, one in seen.items() if one.slo_attainment >= kept]
            return max(enough, key=lambda groups: seen[groups].value, default=most)

        return tuple(self.walked(load.demand, best(kept)) for kept in KEPT_BEFORE)


def ratios(load: LoadComparison, result: DayResult) -> tuple[float, float]:
    """Of the oracle's value and of the best split's; 0 of a day that keeps too few."""
    if not load.compares(result):
        return 0.0, 0.0
    return result.value / load.oracle.value, result.value / load.fixed.value


def cell(load: LoadComparison) -> str:
    """One load of one day."""
    result = load.results[0]
    of_oracle, of_split = ratios(load, result)
    failed = " " if load.compares(result) else "F"
    return (
        f"{failed}{result.slo_attainment:7.2%} {result.worst_5min_attainment:7.1%} "
        f"{of_oracle:5.2f} {of_split:5.2f}"
    )


def print_known(
    made: Sequence[tuple[float, float]],
    kinds: Mapping[tuple[str, float], tuple[int, float]],
    draws: int,
) -> None:
    """How often the policy and a split by other draws of the kind reach the bar."""
    policy, known_split = np.array(made).T < BAR_OF_SPLIT
    shares = [share for _, share in kinds.values()]
    print(
        f"of {len(made)} made-up days, a split by {draws} other draws of the kind is "
        f"below {BAR_OF_SPLIT} on {known_split.sum()}, the policy on {policy.sum()}, both on "
        f"{(policy & known_split).sum()}; such a split is not below on "
        f"{min(shares):.0%} to {max(shares):.0%} of these draws"
    )
    for (name, share), (groups, reached) in kinds.items():
        print(f"  {name} at {share:.0%}: {groups} groups, on {reached:.0%} of the draws")


def run(arguments: Sequence[str] | None = None) -> None:
    """Print each day, and how many reach the bars."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.day_policies")
    parser.add_argument("--policy", default="demand")
    parser.add_argument("--seeds", default="2,3")
    parser.add_argument("--weeks", action="store_true", help="whole weeks too (minutes each)")
    parser.add_argument("--draws", type=int, default=0, help="other draws of each kind (20: 2 min)")
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    on = simulated_machine()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    began_s = time.process_time()
    found: list[tuple[float, float]] = []
    kept_worst = np.zeros(3, dtype=np.int64)  # by the policy, the best split and the oracle
    made: list[tuple[float, float]] = []
    kinds: dict[tuple[str, float], tuple[int, float]] = {}
    splits, before = Splits(on), list[tuple[float, ...]]()
    print(f"{'in time, worst 5 min, x oracle, x best split at':<26} 50, 70 and 90 %")
    for day in benchmark_days(seeds, weeks=args.weeks):
        loads = loads_of(day, args.policy, on)
        found += [ratios(load, load.results[0]) for load in loads]
        for load in loads:
            every = (load.results[0], load.fixed, load.oracle)
            kept_worst += [each.keeps_worst_5min for each in every]
            if args.draws and day.kind is not None:
                kind = (day.kind, load.peak_share)
                if kind not in kinds:
                    kinds[kind] = splits.of_kind(*kind, args.draws)
                known = splits.walked(load.demand, kinds[kind][0])
                made.append((ratios(load, load.results[0])[1], ratios(load, known)[1]))
            chosen = splits.chosen_before(day, load)
            before.append(tuple(ratios(load, each)[1] for each in chosen))
        print(f"{day.name:<26} {' | '.join(map(cell, loads))}", flush=True)
    of_oracle, of_split = np.array(found).T
    print(
        f"{args.policy}: median {np.median(of_oracle):.3f} of the oracle (bar {BAR_OF_ORACLE}), "
        f"{(of_split < BAR_OF_SPLIT).sum()} of {len(of_split)} below {BAR_OF_SPLIT} of the best "
        f"split, {(of_split == 0).sum()} of them in time too rarely; "
        f"{time.process_time() - began_s:.0f} s of CPU, most of it the oracle's"
    )
    print(
        f"the target kept in the worst 5 minutes too: by {args.policy} on {kept_worst[0]}, by the "
        f"best split on {kept_worst[1]}, by the oracle on {kept_worst[2]}"
    )
    if made:
        print_known(made, kinds, args.draws)
    for kept, of_best in zip(KEPT_BEFORE, np.array(before).T, strict=True):
        print(
            f"the best split of up to {DAYS_BEFORE} days before (where a trace begins with the "
            f"day, of another draw of its last one) that kept {kept:.1%} there: "
            f"{(of_best < BAR_OF_SPLIT).sum()} of {len(of_best)} below {BAR_OF_SPLIT}, "
            f"{(of_best == 0).sum()} of them in time too rarely; below where the policy is: "
            f"{(of_best < BAR_OF_SPLIT)[of_split < BAR_OF_SPLIT].sum()}"
        )


if __name__ == "__main__":
    run()
