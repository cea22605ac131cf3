"""What no search can beat: everything that fewer chips than a plan's allow, simulated.

    python -m tests.benchmarks plan_exhaustive QUESTION [--budget TIME] [--data FILE]

A question of `QUESTIONS` is planned as `ultraserve plan` plans it. Then, from few chips on, each
partition, number of replicas and prefill policy, and each two pools on a machine, that the steady
state does not rule out (queues would grow without end) is simulated as the plan's race does: out
is what surely misses the target by 150, 600 or 2,400 requests, and what four fresh runs of 3,000,
or then eight of other seeds, do not surely show to keep it. The first size that passes is the
best there is. Of engines of equal chips and tp both pools have the strongest ones, as a plan's.

Before that, engines for prompts are simulated without any that decode, each number of them in each
number of units for itself: of those that the race's own rule finds late (`PromptSides`) no unit is
simulated.

With `--beaten-by` only those sizes are searched that a plan may not be beaten by. A row's best is
what surely keeps the target with the fewest chips, be it the plan; of up to `searched_to` chips
nothing does, and what lies between is not known. With `--virtual` the plan has its time
by the processor seconds of virtual workers, as on a machine that has nothing else to do.

The plan is then judged again by ten seeds that no search has seen: how many keep the target, and by
how much the mean of their percentiles is apart from what is promised of one more run. The row goes
to a CSV file.
"""

import argparse
import csv
import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np

from loadgen.measures.intervals import student_quantile
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_check import check_in_turn, check_sizes
from serving.analysis.plan.plan_options import Option, OptionTerms
from serving.analysis.plan.plan_pools import PlanPartition, partitions_of, strongest, unit_of
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, NO_POLICY, Race
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FIRST_SHARE, FRESH_TIMES
from serving.analysis.plan.prompt_sides import PromptSides
from serving.analysis.plan.size_check import Again, Check
from serving.commands.plan import question_of
from serving.main import command_parser
from serving.simulator import SimulationWorkers
from tests.benchmarks.virtual_workers import VirtualWorkers

TRACES: Final = Path(
    os.environ.get("ULTRASERVE_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces")
)
_LENGTHS = ("--input", "lognormal:2000,1066", "--output", "lognormal:500,266")
_SLO = ("--slo", "ttft=2s,tpot=40ms@p99")
QUESTIONS: Final = {
    "deepseek-r1": ("--model", "deepseek-r1", "--rate", "50", *_LENGTHS, *_SLO),
    "gpt-oss-120b": ("--model", "gpt-oss-120b", "--rate", "50", *_LENGTHS, *_SLO),
    "gpt-oss-120b at 500/s": ("--model", "gpt-oss-120b", "--rate", "500", *_LENGTHS, *_SLO),
    "deepseek-r1, 100k contexts": (
        *("--model", "deepseek-r1", "--rate", "1", "--input", "lognormal:100000,20000"),
        *("--output", "lognormal:500,266", "--slo", "ttft=30s,tpot=40ms@p99"),
    ),
    "kimi-k2": ("--model", "kimi-k2", "--rate", "50", *_LENGTHS, *_SLO),
    "llama-3.1-405b": ("--model", "llama-3.1-405b", "--rate", "50", *_LENGTHS, *_SLO),
    "deepseek-r1, a Mooncake hour": (
        *("--model", "deepseek-r1", "--trace", f"{TRACES}/mooncake/conversation_trace.jsonl"),
        *("--slo", "ttft=10s,tpot=40ms@p99"),
    ),
    "deepseek-r1, an Azure day's peak": (
        *("--model", "deepseek-r1", "--rate", "74.8", "--slo", "ttft=2s,tpot=40ms@p99"),
        *("--lengths", f"{TRACES}/azure2023/AzureLLMInferenceTrace_conv.csv"),
    ),
}
"""Those of `TRACES` need public data, beside the project or where ULTRASERVE_TRACES says."""
FRESH_SEEDS: Final = range(1_000, 1_010)
DATA: Final = Path(__file__).parent / "data" / "plan_exhaustive.csv"
AT_ONCE: Final = 64


def all_options(question: PlanQuestion, most: int, workers: SimulationWorkers) -> list[Option]:
    """Of up to `most` chips: each partition, and each two pools; none that surely cannot."""
    terms = OptionTerms.of(
        question.sweep,
        question.demand,
        question.slo,
        seats=question.check.schedulers.max_num_seqs,
    )
    tasks = [each for each in question.sweep.tasks() if each[1].partition.chips <= most]
    found = partitions_of(terms, tasks, workers, pools=True)
    return [*(each.option for each in found), *_units(terms, found, most)]


def _units(terms: OptionTerms, found: Sequence[PlanPartition], most: int) -> Iterator[Option]:
    alone_ns = {each.decode: each.alone_ns for each in found if each.decode is not None}
    prefills = strongest([each.prefill for each in found if each.prefill is not None])
    decodes = strongest([*alone_ns])
    machine = terms.sweep.system.chips.count
    for prefill, decode in product(prefills, decodes):
        if prefill.precision != decode.precision:
            continue
        per_prefill, per_decode = (each.candidate.partition.chips for each in (prefill, decode))
        for units in range(1, most // (per_prefill + per_decode) + 1):
            rate_per_s, room = terms.rate_per_s / units, min(machine, most // units)
            least = ceil(rate_per_s / prefill.requests_per_s)
            for decodes_of_unit in range(ceil(rate_per_s / decode.requests_per_s), room + 1):
                left = room - decodes_of_unit * per_decode
                for prefills_of_unit in range(least, left // per_prefill + 1):
                    yield unit_of(
                        terms,
                        (prefill, prefills_of_unit),
                        (decode, decodes_of_unit),
                        units=units,
                        alone_ns=alone_ns[decode],
                    )


def all_settings(
    question: PlanQuestion, most: int, workers: SimulationWorkers
) -> dict[int, list[Setting]]:
    """By chips, up to `most`: what the steady state does not rule out."""
    rate_per_s = question.demand.peak_rate_per_s
    found: defaultdict[int, list[Setting]] = defaultdict(list)
    for option in all_options(question, most, workers):
        counts = [option.replicas]
        if not option.is_pooled:
            counts = [*range(1, most // option.replica_chips + 1)]
        policies = NO_POLICY if option.is_pooled else question.search.policies
        for replicas, policy in product(counts, policies):
            if option.meets and replicas * option.most_requests_per_s >= rate_per_s:
                setting = Setting(option=option, policy=policy, replicas=replicas)
                found[setting.chips].append(setting)
    return dict(sorted(found.items()))


def with_prompts_in_time(
    question: PlanQuestion, settings: dict[int, list[Setting]], workers: SimulationWorkers
) -> dict[int, list[Setting]]:
    """Without units whose engines for prompts are too late, whatever decodes."""
    sides = PromptSides(question, workers, by_others=False)
    sides.judge([*chain.from_iterable(settings.values())])
    return {size: sides.in_time(field) for size, field in settings.items()}


def passing(
    question: PlanQuestion, field: Sequence[Setting], workers: SimulationWorkers
) -> tuple[list[Setting], Counter[str]]:
    """Those that surely keep the target, and how many were simulated in each heat."""
    race, judged = Race(question, workers, lambda _: None), question.check.judged
    simulated: Counter[str] = Counter()
    for times, is_fresh in (
        (1 / FIRST_SHARE, False),
        (1, False),
        (LAST_TIMES, False),
        (FRESH_TIMES, True),
    ):
        tasks = [race.task(each, judged=ceil(times * judged), is_fresh=is_fresh) for each in field]
        checks: list[Check] = []
        for first in range(0, len(tasks), AT_ONCE):
            part = tasks[first : first + AT_ONCE]
            if is_fresh:  # what no further run could make sure is out, as in the race
                in_turn = check_in_turn([(each, each.terms.seeds) for each in part], workers)
                checks += [check for check, _ in in_turn]
            else:
                checks += check_sizes(part, workers)
        simulated[f"by {ceil(times * judged):,}"] += len(tasks)
        field = [
            each
            for each, check in zip(field, checks, strict=True)
            if (check.surely_meets if is_fresh else check.may_meet)
        ]
    return [each for each in field if race.stands(each)], simulated


def fresh_checks(question: PlanQuestion, found: Plan, workers: SimulationWorkers) -> list[Check]:
    """Of the plan's setting by a run of each of ten seeds that no search has seen."""
    race, judged = Race(question, workers, lambda _: None), FRESH_TIMES * question.check.judged
    task = race.task(found.choice.setting, judged=judged, is_fresh=True, early_end=False)
    terms = replace(task.terms, runs=1, judged=judged, window=None)
    tasks = [replace(task, terms=replace(terms, seed=seed)) for seed in FRESH_SEEDS]
    return check_sizes(tasks, workers)


def passed_words(fresh: Sequence[Check], runs: int) -> str:
    """As `9 of 10`; of one unit of a trace each seed gives the same requests, which are one run."""
    words = f"{sum(check.meets for check in fresh[:runs])} of {runs}"
    return words if runs > 1 else f"{words} (the same requests from each seed)"


def beyond_promise(promised: Check, fresh: Sequence[Check]) -> dict[str, float]:
    """By limit, the logarithm of the fresh runs' geometric mean to what is promised of one more
    run; none where nothing is.
    """
    found = {}
    for number, term in enumerate(promised.terms):
        of_each = (check.terms[number].reached_s for check in fresh)
        reached_s = [each for each in of_each if each is not None]
        if term.again is not None and len(reached_s) == len(fresh):
            found[term.name] = float(np.mean(np.log(reached_s)) - np.log(term.again.likely_s))
    return found


def apart_by_chance(again: Again) -> float:
    """How far apart the mean of fresh windows' logarithms may be from that of those judged, with
    95 % confidence: Student's bound of two samples, of equal spread.
    """
    both = 1 / again.windows + 1 / len(FRESH_SEEDS)
    return student_quantile(again.windows - 1) * again.spread * math.sqrt(both)


def planned(question: PlanQuestion, workers: SimulationWorkers, virtual: int) -> tuple[Plan, float]:
    """And the seconds that it took; on so many `virtual` workers, unless there are none."""
    if virtual:
        alone = VirtualWorkers(virtual)
        with alone.clock():
            found = plan(question, workers=alone, progress=say)
        return found, alone.now_s()
    begun_s = time.monotonic()
    return plan(question, workers=workers, progress=say), time.monotonic() - begun_s


def most_searched(chips: int, beaten_by: float) -> int:
    """The most chips of which a plan of `chips` has more than 1 + `beaten_by` times as many."""
    return ceil(round(chips / (1 + beaten_by), 9)) - 1


def say(words: str) -> None:
    """At once, also into a file."""
    print(words, flush=True)


def parser() -> argparse.ArgumentParser:
    """What it is asked for."""
    found = argparse.ArgumentParser(prog="plan_exhaustive", description=__doc__)
    found.add_argument("question", choices=QUESTIONS)
    found.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    found.add_argument("--budget", default="60s")
    found.add_argument("--data", type=Path, default=DATA)
    found.add_argument("--virtual", action="store_true", help="plan on virtual workers")
    found.add_argument(
        "--beaten-by",
        type=float,
        default=0.0,
        metavar="PART",
        help="search only what has so much fewer chips that the plan has more than 1 + PART times "
        "theirs; the row says up to which size",
    )
    return found


def main(arguments: Sequence[str]) -> int:
    """Plan, search everything smaller, judge anew; write a row."""
    asked = parser().parse_args(arguments)
    words = ["plan", *QUESTIONS[asked.question], "--budget", asked.budget]
    args = command_parser("plan").parse_args(words)
    args.words = words
    question = question_of(args)
    with SimulationWorkers(asked.processes) as workers:
        found, plan_s = planned(question, workers, asked.processes if asked.virtual else 0)
        chips = found.choice.check.chips
        say(f"plan: {chips} chips after {plan_s:.1f} s: {found.choice.setting.words}")
        simulated: Counter[str] = Counter()
        best: Setting | None = None
        begun_s, most = time.monotonic(), most_searched(chips, asked.beaten_by)
        everything = all_settings(question, most, workers)
        say(f"{sum(map(len, everything.values())):,} settings of up to {most} chips")
        settings = with_prompts_in_time(question, everything, workers)
        say(f"{sum(map(len, settings.values())):,} of them are simulated")
        for size, field in settings.items():
            passed, counts = passing(question, field, workers)
            simulated += counts
            say(f"{time.monotonic() - begun_s:7.0f} s  {size} chips: {dict(counts)}")
            if passed:
                best = passed[0]
                break
        fresh = fresh_checks(question, found, workers)
    row = {
        "question": asked.question,
        "words": " ".join(QUESTIONS[asked.question]).replace(f"{TRACES}/", ""),
        "plan_chips": chips,
        "plan_setting": found.choice.setting.words,
        "plan_s": round(plan_s, 1),
        "planned_on": f"{asked.processes} {'virtual workers' if asked.virtual else 'processes'}",
        "best_chips": (best or found.choice.setting).chips,
        "best_setting": (best or found.choice.setting).words,
        "searched_to": most if best is None else best.chips - 1,
        "settings": sum(map(len, everything.values())),
        "simulated": simulated[f"by {ceil(question.check.judged / FIRST_SHARE):,}"],
        "fresh_seeds_passed": passed_words(
            fresh, question.demand.runs(found.choice.setting.replicas, len(FRESH_SEEDS))
        ),
        "beyond_promise": " ".join(
            f"{name} {math.expm1(beyond):+.1%}"
            for name, beyond in beyond_promise(found.choice.check, fresh).items()
        ),
        "outdated": "",
    }
    print(row)
    write(row, asked.data)
    return 0


def write(row: dict[str, object], data: Path) -> None:
    """In the place of the question's row that the file may have."""
    rows: dict[object, dict[str, object]] = {}
    if data.exists():
        with data.open(newline="") as file:
            rows = {each["question"]: {**each} for each in csv.DictReader(file)}
    rows[row["question"]] = row
    data.parent.mkdir(exist_ok=True)
    with data.open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
