"""Fresh runs judge what is steady: batches are full when their window begins."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import lognormal_of_median
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_options import Option, OptionTerms
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FRESH_LEADS, size_task
from serving.traffic.engine_limits import SchedulerLimits
from tests.serving.analysis.plan.planned import CHECK, DEMAND, SWEEP, question

LOADED = 0.9
"""Of the most that an engine takes: its steps are then several times those of a lone request."""
LENGTHS = IndependentLengths(
    prompt=lognormal_of_median(median=60, sigma=0.3),
    output=lognormal_of_median(median=200, sigma=0.5),
)
SEEDS = range(8)


@cache
def loaded() -> tuple[PlanQuestion, Option]:
    """One engine, near the most that it takes."""
    asked = question(
        sweep=replace(SWEEP, shape=replace(SWEEP.shape, prompt_tokens=63, output_tokens=227)),
        demand=replace(DEMAND, lengths=LENGTHS),
        slo=Slo.parse("tpot=1s@p99"),
        check=replace(CHECK, schedulers=SchedulerLimits(max_num_seqs=1_024)),
    )
    task = next(each for each in SWEEP.tasks() if each[1].partition.chips == 1)
    option = OptionTerms.of(asked.sweep, asked.demand, asked.slo, seats=1_024).option(task)
    assert option is not None
    demand = replace(DEMAND, lengths=LENGTHS, rate_per_s=LOADED * option.most_requests_per_s)
    return replace(asked, demand=demand), option


def fresh(**changes: bool) -> SizeTask:
    asked, option = loaded()
    setting = Setting(option=option, policy="none", replicas=1)
    return size_task(asked, setting, judged=600, is_fresh=True, **changes)


def test_a_fresh_run_has_a_longer_lead_and_so_have_its_prompts_alone() -> None:
    asked, option = loaded()
    task, alone = fresh(), fresh(prompts_alone=True)
    setting = Setting(option=option, policy="none", replicas=1)
    heat = size_task(asked, setting, judged=600, prompts_alone=True)

    assert task.before_s == FRESH_LEADS * task.lead_s
    assert task.lead_s * 1e9 > option.prompt_ns + 300 * option.alone_ns
    assert alone.before_s == task.before_s
    assert heat.before_s == heat.lead_s == option.prompt_ns / 1e9  # beside a limit of TTFT: none
    assert alone.lead_s == heat.lead_s


@pytest.mark.long
def test_steps_are_as_long_in_the_first_window_of_a_fresh_run_as_in_later_ones() -> None:
    def first_to_later(task: SizeTask) -> float:
        """Of median TPOT, in the mean of all seeds."""
        found = []
        for seed in SEEDS:
            terms = replace(task.terms, seed=seed, runs=1, window=None, early_end=False)
            first, whole = (
                check_size(replace(task, terms=replace(terms, judged=judged)))
                for judged in (300, 3_000)
            )
            medians = [check.percentiles_s["tpot"][0] for check in (first, whole)]
            assert all(medians)
            found.append(np.log(medians[0].value / medians[1].value))  # type: ignore[union-attr]
        return float(np.exp(np.mean(found)))

    task = fresh()

    assert first_to_later(task) == pytest.approx(1, abs=0.02)
    assert first_to_later(replace(task, before_s=task.lead_s)) < 0.98
    assert first_to_later(replace(task, before_s=0.0, lead_s=0.0)) < 0.8
