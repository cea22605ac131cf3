"""What comes after a plan of several models, in words, as tables and as data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from loadgen.records.plain_number import counted
from reporting.charts import TitledChart
from reporting.document import Column, Lines, Section, table_of
from reporting.numbers import four_digits
from serving.analysis.plan.mix_outlook import (
    FleetGrowth,
    FleetMonth,
    warm_fleet,
    warm_replicas,
)
from serving.analysis.plan.model_mix import MixedModel, ModelMix
from serving.analysis.plan.plan_bill import megawatts
from serving.analysis.plan.plan_cold_start_report import cold_start_data, cold_start_section
from serving.analysis.plan.plan_growth_report import (
    GROWTH_ASSUMED,
    growth_data,
    growth_words,
    order_data,
    order_lines,
    replica_lines,
)


def mix_outlook_sections(mix: ModelMix, found: FleetGrowth | None) -> tuple[Section, ...]:
    """Growth of the fleet, if it was asked for, then the cold starts of each model."""
    return (
        *(() if found is None else _growth_sections(mix, found)),
        *_cold_start_sections(mix),
    )


def mix_outlook_charts(mix: ModelMix, found: FleetGrowth | None) -> tuple[TitledChart, ...]:
    """For the page."""
    from serving.analysis.plan.plan_growth_chart import growth_chart

    if found is None:
        return ()
    machines = [each.machines for each in found.months]
    return (growth_chart(_growth_words(mix), machines, found.orders),)


def mix_outlook_data(mix: ModelMix, found: FleetGrowth | None) -> dict[str, Any]:
    """The fleet's growth, for JSON; None where it was not asked for."""
    return {
        "growth": found
        and {
            "by_month": [
                {
                    "month": each.month,
                    "requests_per_s": each.requests_per_s,
                    "replicas": dict(
                        zip((of.name for of in mix.models), each.replicas, strict=True)
                    ),
                    "chips": _chips(mix, each),
                    "ultraservers": each.machines,
                    "provisioned_watts": _watts(mix, each),
                }
                for each in found.months
            ],
            "orders": [*map(order_data, found.orders)],
        }
    }


def model_outlook_data(each: MixedModel) -> dict[str, Any]:
    """A model's as if it were alone, for JSON."""
    growth, cold_start = each.outlook.growth, each.outlook.cold_start
    return {
        "growth": growth and growth_data(each.plan, growth),
        "cold_start": cold_start and cold_start_data(each.plan, cold_start),
        "replicas_kept_warm": warm_replicas(each),
    }


def _growth_sections(mix: ModelMix, found: FleetGrowth) -> tuple[Section, ...]:
    columns: list[Column[FleetMonth]] = [
        Column("month", lambda each: each.month, "d"),
        Column("requests/s", lambda each: each.requests_per_s, four_digits),
        *(_replicas_column(number, of.name) for number, of in enumerate(mix.models)),
        Column("chips", lambda each: _chips(mix, each), ",d"),
        Column("machines", lambda each: each.machines, ",d"),
        Column("provisioned", lambda each: megawatts(_watts(mix, each))),
    ]
    return (
        Lines(title=f"if {_growth_words(mix)}:", rows=tuple(_growth_lines(mix, found))),
        table_of(columns, found.months, title="by month, without a spare machine; replicas:"),
    )


def _replicas_column(number: int, name: str) -> Column[FleetMonth]:
    return Column(name, lambda each: each.replicas[number], ",d")


def _growth_words(mix: ModelMix) -> str:
    """As `the traffic grows each month: that of a by 8 %, that of b not`; an equal rate is said
    once.
    """
    rates = {
        each.name: None if each.outlook.growth is None else each.outlook.growth.growth
        for each in mix.models
    }
    (first, *others) = rates.values()
    if first is not None and all(other == first for other in others):
        return growth_words(first)
    grows = [f"{name} by {100 * of.monthly:.3g} %" for name, of in rates.items() if of is not None]
    stays = [f"{name} not" for name, of in rates.items() if of is None]
    return f"the traffic grows each month: that of {', that of '.join([*grows, *stays])}"


def _growth_lines(mix: ModelMix, found: FleetGrowth) -> Iterator[str]:
    yield from order_lines(found.orders, found.any_growth)
    for each in mix.models:
        if (growth := each.outlook.growth) is not None:
            replicas, until = each.plan.fleet.replicas, max(0.0, growth.in_service_until)
            yield f"{each.name}: {counted(replicas, 'replica')} as planned until month {until:.1f}"
            yield from (f"{each.name}: {line}" for line in replica_lines(each.plan, growth))
    yield (
        "each model grows by itself, in the setting of its plan; replicas of all models are packed "
        "together whenever one is added"
    )
    yield GROWTH_ASSUMED


def _cold_start_sections(mix: ModelMix) -> Iterator[Section]:
    for each in mix.models:
        if (cold_start := each.outlook.cold_start) is not None:
            section = cold_start_section(each.plan, cold_start)
            yield replace(section, title=f"{each.name} as if it were alone, {section.title}")
    if (replicas := warm_fleet(mix)) is not None:
        more = sum(replicas) - sum(each.plan.fleet.replicas for each in mix.models)
        if not more:
            return
        machines = counted(mix.machines_for(replicas), "machine")
        row = f"{counted(more, 'replica')} of all models more than planned; {machines} for all"
        yield Lines(title="kept warm for each of these:", rows=(row,))


def _chips(mix: ModelMix, month: FleetMonth) -> int:
    models = zip(mix.models, month.replicas, strict=True)
    return sum(count * each.plan.fleet.replica_chips for each, count in models)


def _watts(mix: ModelMix, month: FleetMonth) -> float:
    return month.machines * mix.provisioned_watts_per_machine
