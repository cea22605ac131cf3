"""A searched training recipe as a report: recipes, time and memory by part, goodput."""

from collections.abc import Iterator
from typing import Any, Final

from emulator.faults.goodput import CHIP_MTBF_HOURS
from emulator.specs.shipped_fits import PredictionInterval
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.recipe_costs import PARTS, RecipeCosts
from emulator.units import GB, NS_PER_S
from reporting.document import Column, Document, Facts, Lines, Table, table_of
from serving.analysis.steady_state.model_error import (
    TRAINING_RATE,
    in_range,
    model_error,
    plain_ranges,
)
from serving.analysis.training.recipe_plan import UNITS_MAX, RecipePlan

_TERA: Final = 1e12
_COLUMNS: Final = (
    *("precision", "tp", "pp", "virtual", "ep", "ZeRO", "recompute", "sequences", "accumulate"),
    *("tokens/s", "MFU", "HFU", "W/chip"),
)


def recipe_document(plan: RecipePlan) -> Document:
    """The report for people."""
    question, best = plan.question, plan.best
    recipe, system = best.columns.recipe(0), plan.system
    return Document(
        title=f"{question.model.name} trained on {plan.chips} chips of {system.name}",
        subtitle="Modelled, not measured.",
        sections=(
            Facts(title="The fastest recipe", rows=tuple(_facts(plan, recipe))),
            _recipes(plan),
            _time(best),
            _memory(plan),
            Lines(title="Goodput", rows=tuple(_goodput_lines(plan))),
            Lines(title="How to read it", rows=tuple(_notes(plan))),
        ),
    )


def recipe_data(plan: RecipePlan) -> dict[str, Any]:
    """The report in base units."""
    best, good = plan.best, plan.goodput
    recipes = [_row_data(plan, each) for each in plan.found.costs]
    return {
        "model": plan.question.model.name,
        "system": plan.system.name,
        "chips": plan.chips,
        "fewest_chips": plan.fewest_chips,
        "recipes_tried": plan.found.tried,
        "recipes_fitting": plan.found.fitting,
        "recipes": recipes,
        "range_80": plain_ranges(
            {"tokens_per_s": _range(plan)}, {"tokens_per_s": float(best.tokens_per_s[0])}
        ),
        "step_s": float(best.duration_ns[0]) / NS_PER_S,
        "step_tokens": int(best.columns.step_tokens[0]),
        "parts_s": {
            name: float(part[0]) / NS_PER_S for name, part in zip(PARTS, best.parts_ns, strict=True)
        },
        "memory_bytes": {str(owner): size for owner, size in plan.found.memory.owners},
        "chip_hbm_bytes": plan.system.chip.hbm_bytes,
        "goodput": {
            "useful_share": good.useful_share,
            "saving_share": good.saving_share,
            "lost_share": good.lost_share,
            "interval_s": good.interval_s,
            "save_s": good.save_s,
            "restart_s": good.restart_s,
            "job_mtbf_s": good.job_mtbf_s,
            "tokens_per_s": good.useful_share * float(best.tokens_per_s[0]),
        },
        "assumptions": plan.system.turned_switches(),
    }


def _range(plan: RecipePlan) -> PredictionInterval | None:
    """Of trained tokens/s; a roofline has none."""
    return model_error(plan.question.calibration.name).get(TRAINING_RATE)


def _row_data(plan: RecipePlan, costs: RecipeCosts) -> dict[str, Any]:
    recipe = costs.columns.recipe(0)
    mfu, hfu = plan.utilisation(costs, "bf16")
    return {
        **recipe_settings(recipe),
        "tokens_per_s": float(costs.tokens_per_s[0]),
        "mfu_bf16": mfu,
        "hfu_bf16": hfu,
        "mfu": plan.utilisation(costs, recipe.precision)[0],
        "chip_watts": float(costs.chip_watts[0]),
    }


def recipe_settings(recipe: TrainingRecipe) -> dict[str, Any]:
    """A recipe's settings by the names of the command's options."""
    return {
        "precision": recipe.precision,
        "tp": recipe.tp,
        "pp": recipe.pp,
        "virtual_stages": recipe.virtual_stages,
        "ep": recipe.ep,
        "zero": int(recipe.sharding),
        "recompute": recipe.recompute.value,
        "sequences": recipe.sequences_per_chip,
        "micro_batches": recipe.micro_batches,
    }


def _facts(plan: RecipePlan, recipe: TrainingRecipe) -> Iterator[tuple[str, str]]:
    best, chip = plan.best, plan.system.chip
    rate = float(best.tokens_per_s[0])
    yield "recipe", recipe.described
    yield (
        "speed",
        f"{rate:,.0f} tokens/s{in_range(_range(plan), rate)}, {rate / plan.chips:,.0f} a chip",
    )
    yield (
        "step",
        f"{best.columns.step_tokens[0]:,} tokens in {best.duration_ns[0] / NS_PER_S:,.2f} s",
    )
    for precision in dict.fromkeys((recipe.precision, "bf16")):
        mfu, hfu = plan.utilisation(best, precision)
        peak = chip.tensor_flops_per_s(precision) / _TERA
        yield (
            "MFU" if precision == recipe.precision else "",
            f"{mfu:.1%} of {peak:,.0f} TFLOP/s {precision} a chip (HFU {hfu:.1%})",
        )
    watts = float(best.chip_watts[0])
    yield "power", f"{watts:,.0f} W a chip, {watts * plan.chips / 1e3:,.1f} kW of all chips"
    yield "searched", f"{plan.found.tried:,} recipes, of which {plan.found.fitting:,} fit HBM"
    yield "fewest chips", _fewest(plan)


def _fewest(plan: RecipePlan) -> str:
    width = plan.question.domain.chips.count
    if plan.fewest_chips is None:
        return f"no number up to {UNITS_MAX * width:,} holds any of these recipes"
    units = -(-plan.fewest_chips // width)
    return f"{plan.fewest_chips} hold a recipe, on {units} {plan.question.domain.name}"


def _recipes(plan: RecipePlan) -> Table:
    def cells(costs: RecipeCosts) -> tuple[str, ...]:
        found = _row_data(plan, costs)
        settings = [str(value) for value in recipe_settings(costs.columns.recipe(0)).values()]
        rates = (f"{found['mfu_bf16']:.1%}", f"{found['hfu_bf16']:.1%}")
        return (*settings, f"{found['tokens_per_s']:,.0f}", *rates, f"{found['chip_watts']:,.0f}")

    columns: tuple[Column[tuple[str, ...]], ...] = tuple(Column(name) for name in _COLUMNS)
    rows = [cells(costs) for costs in plan.found.costs]
    return table_of(columns, rows, title="The fastest recipes", foot="MFU and HFU over BF16's peak")


def _time(best: RecipeCosts) -> Table:
    columns: tuple[Column[tuple[str, ...]], ...] = (
        Column("part", align="left"),
        Column("ms"),
        Column("share"),
    )
    duration_ns = float(best.duration_ns[0])
    rows = [
        (name.replace("_", " "), f"{float(part[0]) / 1e6:,.1f}", f"{part[0] / duration_ns:.1%}")
        for name, part in zip(PARTS, best.parts_ns, strict=True)
        if part[0] > 0
    ]
    foot = "of the slowest stage; communication as far as it is exposed"
    return table_of(columns, rows, title="A step's time by part", foot=foot)


def _memory(plan: RecipePlan) -> Table:
    memory, capacity = plan.found.memory, plan.system.chip.hbm_bytes
    columns: tuple[Column[tuple[str, ...]], ...] = (
        Column("owner", align="left"),
        Column("GB"),
        Column("share"),
    )
    rows = [
        (str(owner), f"{size / GB:,.1f}", f"{size / capacity:.1%}") for owner, size in memory.owners
    ]
    rows.append(("free", f"{(capacity - memory.chip_bytes) / GB:,.1f}", ""))
    return table_of(columns, rows, title="HBM of the fullest chip")


def _goodput_lines(plan: RecipePlan) -> Iterator[str]:
    good, rate = plan.goodput, float(plan.best.tokens_per_s[0])
    yield (
        f"{good.useful_share:.1%} of the time is useful: {good.useful_share * rate:,.0f} tokens/s; "
        f"{good.saving_share:.1%} goes into checkpoints, {good.lost_share:.1%} is lost to failures"
    )
    yield (
        f"a failure every {good.job_mtbf_s / 3_600:,.1f} h of the job; a checkpoint every "
        f"{good.interval_s / 60:,.1f} min takes {good.save_s:,.1f} s, while chips wait; a restart "
        f"{good.restart_s:,.1f} s"
    )


def _notes(plan: RecipePlan) -> Iterator[str]:
    yield from plan.system.turned_in_words()
    yield (
        "MFU: model flops (forward and twice that backward, of the products with the 6 x active "
        "parameters of the usual rule, and of causal attention) over the peak; HFU counts what "
        "runs, recomputing and attention's second scores included"
    )
    yield (
        f"one of {CHIP_MTBF_HOURS.value:,.0f} chip-hours ends in a failure unless you say: "
        f"{CHIP_MTBF_HOURS.source}"
    )
    if _range(plan) is not None:
        yield (
            "80 %: of published runs on GPUs, each predicted without its machine; none was on "
            "Trainium"
        )
    yield "a recipe's speed says nothing of what the model learns from a batch of that size"
