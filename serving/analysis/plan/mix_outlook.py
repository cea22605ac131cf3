"""What comes after a plan of several models: the machines that all need as each of them grows.

A model's replicas follow from its own growth and from what one of them takes, as if it were alone;
those of all models are packed together, so that a machine is ordered when the fleet needs it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from serving.analysis.plan.growth import Growth
from serving.analysis.plan.model_mix import MixedModel, ModelMix
from serving.analysis.plan.plan_growth import MachineOrder, machine_orders


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMonth:
    """Sizes of one month: replicas in the order of the models, machines without a spare."""

    month: int
    requests_per_s: float
    replicas: tuple[int, ...]
    machines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGrowth:
    """Sizes of months 0 (now) to the last one asked for, and the orders that they need.

    `any_growth`: a model's; all have the same months and lead time.
    """

    any_growth: Growth
    months: tuple[FleetMonth, ...]
    orders: tuple[MachineOrder, ...]


def fleet_growth(mix: ModelMix) -> FleetGrowth | None:
    """Of a mix; None where no model grows. One whose growth is not known, as after an interrupt,
    stays as it is.
    """
    grown = [each.outlook.growth for each in mix.models if each.outlook.growth is not None]
    if not grown:
        return None
    growth = grown[0].growth
    months = [_size(mix, month) for month in range(growth.months + 1)]
    sizes = [*_sizes(mix, months[0], months[-1])]

    def until(machines: int) -> float:
        at = bisect_right(sizes, machines, key=lambda size: mix.machines_for(size[1]))
        return sizes[at][0]

    return FleetGrowth(
        any_growth=growth,
        months=tuple(months),
        orders=tuple(
            machine_orders(
                [each.machines for each in months], until, lead_months=growth.lead_months
            )
        ),
    )


def warm_replicas(each: MixedModel) -> int | None:
    """Replicas of a model that must be kept warm beside the plan's, so that the target is kept
    until new ones serve; None where that is not known.
    """
    cold_start = each.outlook.cold_start
    if cold_start is None:
        return None
    kept = [gap.fewest.warm for gap in cold_start.gaps if gap.fewest is not None]
    return max(kept) if len(kept) == len(cold_start.gaps) else None


def warm_fleet(mix: ModelMix) -> tuple[int, ...] | None:
    """Replicas of each model with those that must be kept warm; None where that is not known of
    each.
    """
    replicas = [
        each.plan.fleet.replicas + warm
        for each in mix.models
        if (warm := warm_replicas(each)) is not None
    ]
    return tuple(replicas) if len(replicas) == len(mix.models) else None


def _size(mix: ModelMix, month: int) -> FleetMonth:
    sizes = [*(_replicas_and_rate(each, month) for each in mix.models)]
    replicas = tuple(count for count, _ in sizes)
    return FleetMonth(
        month=month,
        requests_per_s=sum(rate_per_s for _, rate_per_s in sizes),
        replicas=replicas,
        machines=mix.machines_for(replicas),
    )


def _replicas_and_rate(each: MixedModel, month: int) -> tuple[int, float]:
    if each.outlook.growth is None:
        return each.plan.fleet.replicas, each.plan.question.demand.peak_rate_per_s
    size = each.outlook.growth.months[month]
    return size.replicas, size.requests_per_s


def _sizes(
    mix: ModelMix, first: FleetMonth, last: FleetMonth
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """When a replica more is needed, in months from now, and all models' replicas from then on."""
    additions = sorted(
        (each.outlook.growth.until(held), number)
        for number, each in enumerate(mix.models)
        if each.outlook.growth is not None
        for held in range(first.replicas[number], last.replicas[number])
    )
    replicas = [*first.replicas]
    for month, number in additions:
        replicas[number] += 1
        yield month, tuple(replicas)
