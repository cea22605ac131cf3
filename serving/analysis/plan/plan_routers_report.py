"""The routers of a plan's replicas, in words and as data."""

import shlex
from collections.abc import Iterator
from typing import Any, Final

from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.precisions import kv_dtype
from emulator.specs.shipped_fits import FITTED
from loadgen.records.plain_number import counted
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_routers import MORE, RouterRace
from serving.analysis.plan.plan_setting import Setting
from serving.traffic.engine_limits import HBM_SHARE, SchedulerLimits

CLOCK: Final = "dilated:20"
"""Of the command: replicas take no clock that follows the load, and few hosts keep up with `real`;
the guide to replicas has the same.
"""


def serve_words(question: PlanQuestion, setting: Setting, router: str) -> str:
    """The command that serves them, each of which computes its own prompts."""
    sweep, partition = question.sweep, setting.option.candidate.partition
    flags: list[tuple[str, object]] = [
        ("--model", sweep.model.name),
        ("--system", sweep.system.name),
        *(("--set", each) for each in question.assumptions),
        ("--replicas", setting.replicas),
        ("--router", router),
        ("--clock", CLOCK),
        ("--chips", partition.chips),
        ("--tp", partition.tp),
        ("--ep", partition.ep),
        ("--lnc", partition.lnc),
        ("--attention-split", partition.attention_split),
        ("--prefill-policy", setting.policy),
        *_step_flags(question, setting),
        *_limit_flags(question, setting),
    ]
    if partition.spares:
        flags.append(("--spares", partition.spares))
    words = [str(word) for flag in flags for word in flag]
    if not question.check.schedulers.prefix_caching:
        words.append("--no-enable-prefix-caching")
    return f"ultraserve serve {shlex.join(words)}"


def _step_flags(question: PlanQuestion, setting: Setting) -> Iterator[tuple[str, object]]:
    """What a step's time and the HBM rest on, other than a server's defaults."""
    sweep, precision = question.sweep, setting.option.point.precision
    kv = kv_dtype(sweep.model)
    if precision != "stored":
        yield "--quantization", precision
    if kv != kv_dtype(model_by_name(sweep.model.name)):
        yield "--kv-cache-dtype", kv
    if sweep.assumptions.calibration.name != FITTED:
        yield "--calibration", sweep.assumptions.calibration.name
    if sweep.assumptions.overlap is not Overlap.NONE:
        yield "--overlap", sweep.assumptions.overlap
    if sweep.routing != "uniform":
        yield "--routing", sweep.routing
    if sweep.terms.utilization != HBM_SHARE:
        yield "--gpu-memory-utilization", sweep.terms.utilization


def _limit_flags(question: PlanQuestion, setting: Setting) -> Iterator[tuple[str, object]]:
    """The schedulers' limits: the searched ones, and others than a server's defaults."""
    schedulers, default = question.check.schedulers, SchedulerLimits()
    limits = setting.limits or schedulers.batch
    yield "--max-num-seqs", limits.max_num_seqs
    yield "--max-num-batched-tokens", limits.max_num_batched_tokens
    for name, flag in (
        ("block_tokens", "--block-size"),
        ("max_model_len", "--max-model-len"),
        ("scheduling_policy", "--scheduling-policy"),
        ("long_prefill_token_threshold", "--long-prefill-token-threshold"),
    ):
        value = getattr(schedulers, name)
        if value != getattr(default, name):
            yield flag, value


def router_line(race: RouterRace | None) -> Iterator[str]:
    """The router to serve with, for the first lines."""
    if race is None:
        return
    router, check = race.chosen.router, race.chosen.check
    count, of = len(race.runs), " for prompts" if race.of_prompts else ""
    if not race.makes_difference:
        said = f"no router{of} makes a difference; behind {router}"
    elif race.is_best:
        said = f"{router}{of} is the best of {count}"
    else:
        said = f"{router}{of} is as good as the best of {count}"
    said = f"router: {said}: {check.verdict}, {check.reached_words}"
    yield said if race.of_prompts else f"{said}; {_enough_words(race)}"


def _enough_words(race: RouterRace) -> str:
    enough = race.enough
    if not race.is_whole:
        return "how many are enough behind it was not found: the time was over (--budget)"
    if enough is None:
        return f"up to {MORE:g} times the replicas none of those tried seem to keep the target"
    seem = "seems" if enough.replicas == 1 else "seem"
    return (
        f"{counted(enough.replicas, 'replica')} ({counted(enough.chips, 'chip')}) {seem} to keep "
        f"the target behind it, by one run of {enough.requests:,} requests"
    )


def router_rows(question: PlanQuestion, setting: Setting, race: RouterRace) -> Iterator[str]:
    """What each shows, what that says of the size, and how the router is served."""
    for run in race.runs:
        hits = run.check.hit_share
        found = "" if hits is None else f"; {100 * hits:.3g} % of prompt tokens found in caches"
        yield f"{run.router}: {run.check.reached_words}{found}"
    if race.of_prompts:
        return
    own = f"the plan's {counted(setting.chips, 'chip')}"
    said = f"{own} are for requests dealt out at random, judged by many runs"
    if race.enough is not None and race.enough.chips != setting.chips:
        said += f"; {counted(race.enough.chips, 'chip')} by one run alone, so take them for a hint"
    yield said
    yield f"served by: {serve_words(question, setting, race.chosen.router)}"


def router_data(race: RouterRace | None) -> dict[str, Any] | None:
    """In base units; None without a choice."""
    if race is None:
        return None
    enough = race.enough
    return {
        "of_prompts": race.of_prompts,
        "router": race.chosen.router,
        "makes_difference": race.makes_difference,
        "meets": race.chosen.check.meets,
        "replicas_that_seem_to_keep_the_target": enough and enough.replicas,
        "chips_that_seem_to_keep_the_target": enough and enough.chips,
        "is_whole": race.is_whole,
        "runs": [
            {
                "router": run.router,
                "meets": run.check.meets,
                "hit_share": run.check.hit_share,
                "terms": [
                    {"name": term.measure, "reached_s": term.reached_s, "share": term.share}
                    for term in run.check.terms
                ],
            }
            for run in race.runs
        ],
    }
