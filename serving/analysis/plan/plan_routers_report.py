"""The routers of a plan's replicas, in words and as data."""

from collections.abc import Iterator
from typing import Any

from emulator.specs.models import model_by_name
from emulator.specs.precisions import kv_dtype
from loadgen.records.plain_number import counted
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_routers import MORE, RouterRace
from serving.analysis.plan.plan_setting import Setting


def serve_words(question: PlanQuestion, setting: Setting, router: str) -> str:
    """The command that serves them, each of which computes its own prompts."""
    partition, limits = setting.option.candidate.partition, setting.limits
    limits = limits or question.check.schedulers.batch
    flags: dict[str, object] = {
        "--model": question.sweep.model.name,
        "--system": question.sweep.system.name,
        "--replicas": setting.replicas,
        "--router": router,
        "--chips": partition.chips,
        "--tp": partition.tp,
        "--ep": partition.ep,
        "--lnc": partition.lnc,
        "--attention-split": partition.attention_split,
        "--prefill-policy": setting.policy,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-num-batched-tokens": limits.max_num_batched_tokens,
    }
    precision, kv = setting.option.point.precision, kv_dtype(question.sweep.model)
    if precision != "stored":
        flags["--quantization"] = precision
    if kv != kv_dtype(model_by_name(question.sweep.model.name)):
        flags["--kv-cache-dtype"] = kv
    if partition.spares:
        flags["--spares"] = partition.spares
    return "ultraserve serve " + " ".join(f"{flag} {value}" for flag, value in flags.items())


def router_line(race: RouterRace | None) -> Iterator[str]:
    """The router to serve with, for the first lines."""
    if race is None:
        return
    check = race.best.check
    reached = ", ".join(term.reached_words for term in check.terms)
    of = "for prompts " if race.of_prompts else ""
    said = f"router: {race.best.router} {of}is the best of {len(race.runs)}: {check.verdict}"
    said = f"{said}, {reached}"
    if race.of_prompts:
        yield said
    elif race.enough is None:
        yield f"{said}; up to {MORE:g} times the replicas do not surely keep the target behind it"
    else:
        enough = counted(race.enough.replicas, "replica")
        yield f"{said}; {enough} surely keep the target behind it, by one run"


def router_rows(question: PlanQuestion, setting: Setting, race: RouterRace) -> Iterator[str]:
    """What each shows, and how the best is served."""
    for run in race.runs:
        reached = ", ".join(term.reached_words for term in run.check.terms)
        hits = run.check.hit_share
        found = "" if hits is None else f"; {100 * hits:.3g} % of prompt tokens found in caches"
        yield f"{run.router}: {reached}{found}"
    if not race.of_prompts:
        yield f"served by: {serve_words(question, setting, race.best.router)}"


def router_data(race: RouterRace | None) -> dict[str, Any] | None:
    """In base units; None without a choice."""
    if race is None:
        return None
    enough = race.enough
    return {
        "of_prompts": race.of_prompts,
        "best": race.best.router,
        "meets": race.best.check.meets,
        "replicas_that_surely_keep_the_target": enough and enough.replicas,
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
