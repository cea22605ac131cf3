"""A plan's growth in words, as a table and as data."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from loadgen.records.plain_number import counted
from reporting.document import Column, Lines, Section, table_of
from reporting.numbers import four_digits
from serving.analysis.plan.class_demand import measure_words
from serving.analysis.plan.growth import MONTH_S, WEEK_S, Growth
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_bill import megawatts
from serving.analysis.plan.plan_growth import MachineOrder, MonthSize, PlanGrowth

GROWTH_ASSUMED: Final = (
    "assumed: the same part more every month, the same lengths, arrivals and setting; month 0 "
    "is now, a month 30.4 days; machines that are needed after the last month are left out, "
    "also where they have to be ordered before"
)


def growth_sections(plan: Plan, found: PlanGrowth) -> tuple[Section, ...]:
    """What ends first and what to order by when; then each month."""
    title = f"if {growth_words(found.growth)}:"
    columns: list[Column[MonthSize]] = [
        Column("month", lambda each: each.month, "d"),
        Column("requests/s", lambda each: each.requests_per_s, four_digits),
        Column("replicas", lambda each: each.replicas, ",d"),
        Column("chips", lambda each: each.replicas * plan.fleet.replica_chips, ",d"),
        Column("machines", lambda each: each.machines, ",d"),
        Column("provisioned", lambda each: megawatts(_watts(plan, each))),
        Column("size by", _basis, align="left"),
    ]
    return (
        Lines(title=title, rows=tuple(_lines(plan, found))),
        table_of(columns, found.months, title="by month, without a spare machine:"),
    )


def growth_words(growth: Growth) -> str:
    """As `the traffic grows by 8 % a month`."""
    return f"the traffic grows by {100 * growth.monthly:.3g} % a month"


def _watts(plan: Plan, size: MonthSize) -> float:
    return size.machines * plan.provisioned_watts_per_machine


def _basis(size: MonthSize) -> str:
    if size.check is None:
        return "rate of a replica" if size.month else "the plan"
    if size.check.surely_meets:
        return "simulated"
    return f"simulated: {'not surely' if size.check.meets else 'NOT'} within the target"


def _lines(plan: Plan, found: PlanGrowth) -> Iterator[str]:
    growth, replicas = found.growth, plan.fleet.replicas
    held = plan.machines * plan.replicas_per_machine
    yield (
        f"{counted(replicas, 'replica')} in service, as planned, "
        f"{_keep(replicas)} the target until {_month(found, found.in_service_until)}"
        f"{_ends(plan)}"
    )
    if held > replicas:
        yield (
            f"{counted(held, 'replica')}, all that {counted(plan.machines, 'machine')} "
            f"{'holds' if plan.machines == 1 else 'hold'}, {_keep(held)} it until "
            f"{_month(found, found.machines_until)}: then chips are what ends first"
        )
    yield from order_lines(found.orders, growth)
    yield from replica_lines(plan, found)
    if plan.choice.check.prefill is not None:
        yield "a replica is a unit of both pools here"
    yield GROWTH_ASSUMED


def order_lines(orders: Sequence[MachineOrder], growth: Growth) -> Iterator[str]:
    """When machines are needed, and by when they have to be ordered."""
    if not orders:
        yield f"no further machine is needed within {counted(growth.months, 'month')}"
    for order in orders:
        yield f"{_machines(order)}: needed from month {order.needed_month:.1f} on, {_by(order)}"
    lead = f"lead time {growth.lead_time_s / WEEK_S:.3g} weeks"
    yield f"{lead}{' (assumed: --lead-time)' if growth.lead_time_is_assumed else ''}"


def replica_lines(plan: Plan, found: PlanGrowth) -> Iterator[str]:
    """What one replica takes, and how that is known."""
    simulated = sum(each.check is not None for each in found.months)
    known = ""
    if plan.margins is not None and plan.margins.most_requests_per_s:
        shown = plan.margins.most_requests_per_s / plan.fleet.replicas
        known = f" ({four_digits(shown)} by the shorter runs of the headroom)"
    yield (
        f"sizes follow from what a replica takes, {four_digits(found.replica_requests_per_s)} "
        f"requests/s{known}: replicas are independent; {counted(simulated, 'size')} simulated, the "
        "last month's and those at which machines are added, with fresh seeds"
    )
    if found.why_not:
        yield f"not all of them were: {found.why_not}"


def _keep(count: int) -> str:
    return "keeps" if count == 1 else "keep"


def _ends(plan: Plan) -> str:
    missed = "" if plan.margins is None else plan.margins.rates[-1].missed
    return f", then {measure_words(missed)} misses" if missed else ""


def _month(found: PlanGrowth, months: float) -> str:
    beyond = ", beyond the months asked for" if months > found.growth.months else ""
    return f"month {max(0.0, months):.1f}{beyond}"


def _machines(order: MachineOrder) -> str:
    if order.first == order.last:
        return f"machine {order.first:,}"
    return f"machines {order.first:,} to {order.last:,}"


def _by(order: MachineOrder) -> str:
    weeks = order.order_month * MONTH_S / WEEK_S
    if order.is_late:
        return f"ORDER NOW: {-weeks:.1f} weeks late"
    return f"ordered by month {order.order_month:.1f}, {weeks:.1f} weeks from now"


def growth_data(plan: Plan, found: PlanGrowth) -> dict[str, Any]:
    """The same in base units."""
    growth = found.growth
    return {
        "monthly_share": growth.monthly,
        "months": growth.months,
        "lead_time_s": growth.lead_time_s,
        "lead_time_is_assumed": growth.lead_time_is_assumed,
        "requests_per_s_of_a_replica": found.replica_requests_per_s,
        "in_service_until_month": found.in_service_until,
        "machines_until_month": found.machines_until,
        "not_simulated_because": found.why_not or None,
        "by_month": [
            {
                "month": each.month,
                "requests_per_s": each.requests_per_s,
                "replicas": each.replicas,
                "chips": each.replicas * plan.fleet.replica_chips,
                "ultraservers": each.machines,
                "provisioned_watts": _watts(plan, each),
                "simulated": each.check is not None,
                "surely_meets": None if each.check is None else each.check.surely_meets,
            }
            for each in found.months
        ],
        "orders": [*map(order_data, found.orders)],
    }


def order_data(order: MachineOrder) -> dict[str, Any]:
    """An order's in base units."""
    return {
        "first_ultraserver": order.first,
        "last_ultraserver": order.last,
        "needed_month": order.needed_month,
        "order_month": order.order_month,
        "is_late": order.is_late,
    }
