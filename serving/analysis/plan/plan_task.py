"""By which runs a plan's setting is judged: how many requests, seeds, and the traffic around them.

What won a race by some seeds' luck fails by others. So what a heat seems to show is confirmed by
seeds that no heat has seen, and what a search found by seeds that nothing has seen. A *fresh run*
is as long as such a run's window: the answer has to keep the target in more of them, not only on
the mean of those that were made.
"""

from dataclasses import asdict, replace
from math import ceil
from typing import Final

import numpy as np

from emulator.units import NS_PER_S
from serving.analysis.plan.class_demand import long_run
from serving.analysis.plan.plan_check import SizeTask
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.size_check import STANDS_TAIL
from serving.analysis.plan.timed_run import unix_s

LEAD_BY_JUDGED: Final = 3
"""Requests before the judged ones to each of these, at most: a few judged ones cost little more."""
FIRST_SHARE: Final = 4
"""A fourth of the requests to judge decides the first heat."""
FRESH_TIMES: Final = 5
"""Times the requests to judge in a fresh run: a queue that grows slowly shows in it."""
FRESH_RUNS: Final = 4
"""Runs by which the best two of a heat are confirmed."""
SEEMS_TAIL: Final = 0.1
"""Of fresh runs, at most so many miss a limit of what is confirmed; of so few runs little is known
of their spread, and what passes is judged anew.
"""
ANEW_TIMES: Final = 2
"""Times as many runs, of other seeds, and of fresh runs in each, judge what was found: what comes
before them is simulated once for both.
"""
FRESH_LEADS: Final = 2
"""Times the lead of others, before what a fresh run judges: after the time of a long reply batches
lack a twentieth, whose absence makes steps shorter, and so the stay of all that run.
"""
FEWER: Final = 2  # and longer runs, where the lead of one has more requests than are judged in it


def size_task(
    question: PlanQuestion,
    setting: Setting,
    *,
    judged: int,
    is_fresh: bool = False,
    prompts_alone: bool = False,
    early_end: bool = True,
    is_whole_rate: bool = False,
    ends_s: float = float("inf"),
) -> SizeTask:
    """To judge a setting by so many requests, or with `prompts_alone` its engines for them; if
    `is_fresh` in each of several fresh runs. `is_whole_rate`: the requests are those of all
    replicas, which run together. What runs at `ends_s` of `time.monotonic` raises OutOfTime.
    """
    option, peak = setting.option, question.demand.peak
    limits = {} if setting.limits is None else asdict(setting.limits)
    schedulers = replace(question.check.schedulers, prefill_policy=setting.policy, **limits)
    requests_per_s = question.demand.peak_rate_per_s / setting.replicas
    # Batches become steady within the time of a long reply; for a first heat nearly is enough.
    is_first = judged < question.check.judged
    outputs = peak.output_tokens
    output_tokens = float(outputs.mean() if is_first else np.percentile(outputs, 90))
    lead_ns = option.prompt_ns + output_tokens * option.tpot_ns_at(requests_per_s)
    lead_s = lead_ns / NS_PER_S
    fresh_s = FRESH_LEADS * lead_s
    if prompts_alone:  # of what waits longer none is in time
        limits_s = [bound.limit_s for bound in question.slo.bounds if bound.name == "ttft"]
        lead_s = option.prompt_ns / NS_PER_S + max(limits_s, default=0.0)
    # Engines for prompts, too: queues of a nearly full load grow as long as in their unit's run.
    warm_s = max(_warm_s(question, setting), question.demand.ramp_s)
    before_s = max(fresh_s if is_fresh else lead_s, warm_s)
    run_requests_per_s = requests_per_s * (setting.replicas if is_whole_rate else 1)
    lead_requests = run_requests_per_s * before_s
    window: int | None = question.check.judged
    runs = 1
    if judged > question.check.judged:
        judged = max(judged, long_run(question.demand, question.slo, run_requests_per_s))
    if is_fresh:
        runs = question.demand.runs(setting.replicas, FRESH_RUNS)
        window = None if runs == 1 else judged  # every run is the same
        if lead_requests > judged and runs == FRESH_RUNS:  # fewer leads, as many judged
            runs, judged = FRESH_RUNS // FEWER, FEWER * judged
    return SizeTask(
        sweep=question.sweep,
        precision=option.point.precision,
        candidate=option.candidate,
        prefill=option.point.prefill,
        prompts_alone=prompts_alone,
        demand=question.demand,
        slo=question.slo,
        terms=replace(
            question.check,
            schedulers=schedulers,
            seed=question.check.seed + is_fresh,
            judged=max(judged, ceil(lead_requests / LEAD_BY_JUDGED)),
            runs=runs,
            window=window,
            early_end=early_end,
            **({"again_tail": SEEMS_TAIL} if is_fresh else {}),
        ),
        replicas=setting.replicas,
        lead_s=lead_s,
        before_s=before_s,
        ends_at=unix_s(ends_s),
        most_requests_per_s=option.most_requests_per_s,
    )


def task_anew(
    question: PlanQuestion,
    setting: Setting,
    *,
    prompts_alone: bool = False,
    ends_s: float = float("inf"),
) -> SizeTask:
    """To judge a setting, or its engines for prompts alone, by seeds that no heat and no
    confirmation has seen, and neither has the other; where all seeds give the same requests, by
    these.
    """
    judged = FRESH_TIMES * question.check.judged
    task = size_task(
        question,
        setting,
        judged=judged,
        is_fresh=True,
        prompts_alone=prompts_alone,
        ends_s=ends_s,
    )
    if task.terms.window is None:
        return task
    terms = replace(
        task.terms,
        seed=task.terms.seed + task.terms.runs * (1 + ANEW_TIMES * prompts_alone),
        runs=ANEW_TIMES * task.terms.runs,
        judged=ANEW_TIMES * task.terms.judged,
        again_tail=STANDS_TAIL,
    )
    return replace(task, terms=terms)


def _warm_s(question: PlanQuestion, setting: Setting) -> float:
    """Until prefix caches are as they stay: until new tokens have filled them, as slowly as where
    all that could be found is, or nearly all that could be found has come.
    """
    prefixes, shape = question.demand.prefixes, question.sweep.shape
    if prefixes is None:
        return 0.0
    pool = setting.option.point.prefill
    engine, engines = (setting.option.candidate, 1) if pool is None else (pool, pool.replicas)
    tokens = engines * engine.partition.ranks * engine.kv_capacity_tokens
    requests_per_s = question.demand.peak_rate_per_s / setting.replicas
    return min(prefixes.lead_s, tokens / (requests_per_s * shape.computed_tokens))
