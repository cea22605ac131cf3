"""What a plan's nights leave over, in words and as data."""

from collections.abc import Iterator
from typing import Any

from loadgen.records.plain_number import counted
from serving.analysis.plan.night import HOURS, Night
from serving.analysis.plan.plan_bill import Bill


def night_lines(night: Night, bill: Bill) -> Iterator[str]:
    """Chips and energy that a day frees, and replicas in service by hour."""
    yield (
        f"{night.free_chip_hours:,} chip-hours a day, {bill.freed_mwh_per_day:,.3g} MWh of their "
        f"racks' budget; serving draws {bill.serving_mwh_per_day:,.3g} MWh a day"
    )
    most = night.trough_free_chips
    if most:
        for chips in sorted({most, -(-most // 2)}, reverse=True):
            first, count = night.stretch(chips)
            yield (
                f"{counted(chips, 'chip')} or more free for {counted(count, 'hour')} on end, from "
                f"hour {first} on"
            )
    hours = " ".join(str(hour.replicas) for hour in night.hours)
    yield f"replicas in service by hour: {hours}"
    if night.never_used_chips:
        yield f"beside them {night.never_used_chips:,} chips bought are in service at no hour"


def night_data(night: Night) -> dict[str, Any]:
    """The same in base units."""
    most = night.trough_free_chips
    first, count = night.stretch(most) if most else (0, 0)
    return {
        "source": night.day.source,
        "hours": night.hours,
        "mean_share_of_peak": night.day.mean_share,
        "free_chip_hours_per_day": night.free_chip_hours,
        "trough_free_chips": most,
        "trough_first_hour": first,
        "trough_hours": count,
        "never_used_chips": night.never_used_chips,
        "hours_per_day": HOURS,
    }
