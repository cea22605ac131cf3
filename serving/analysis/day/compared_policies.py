"""Policies side by side at each load, as a table and as plain data: `ultraserve day --compare`."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from reporting.document import Column, Document, Lines, Table, table_of
from serving.analysis.day.day_comparison import LoadComparison
from serving.analysis.day.day_result import DayResult, ValueUnit
from serving.analysis.day.virtual_day import VirtualDay

MISSED: Final = "FAILED"
MISSED_5MIN: Final = "5 MIN"
UNITS: Final = {
    ValueUnit.FLOPS: ("Eflop/MWh", 1e18),
    ValueUnit.TOKENS: ("Mtok/MWh", 1e6),
    ValueUnit.TRAINED: ("Mtok/MWh", 1e6),
}
"""Of a value, and its scale."""
UNIT_WORDS: Final = {
    ValueUnit.FLOPS: "model flops of served and trained tokens",
    ValueUnit.TOKENS: "served output tokens and trained tokens",
    ValueUnit.TRAINED: "trained tokens",
}


def mark(result: DayResult) -> str:
    """What a day missed: the target, or the target in its worst 5 minutes alone."""
    if not result.keeps_target:
        return MISSED
    return "" if result.keeps_worst_5min else MISSED_5MIN


def marks_in_words(required_share: float) -> str:
    """What the marks say."""
    return (
        f"a policy with less than {required_share:.4g} of the requests within both is marked "
        f"{MISSED}, one that has them over the day but not in its worst 5 minutes {MISSED_5MIN}"
    )


def oracle_in_words(load: LoadComparison) -> str:
    """How near the oracle is to the best that there can be."""
    gap = load.oracle_gap
    if gap is None:
        return "hand-overs last over many looks, so that no bound on the oracle is computed"
    return (
        f"no plan that keeps {load.kept_share:.3%} of the requests in time is worth more than "
        f"{gap:.2%} above the oracle"
    )


def value_of(load: LoadComparison, result: DayResult) -> float | None:
    """Per MWh; None for a day that keeps too few requests in time to be compared."""
    return result.value if load.compares(result) else None


def ratio_column(load: LoadComparison, name: str, other: DayResult) -> Column[DayResult]:
    """Values over another day's."""

    def ratio(result: DayResult) -> float | None:
        value = value_of(load, result)
        return None if value is None or not other.value else value / other.value

    return Column(f"x {name}", ratio, ".2f")


def policy_column(load: LoadComparison) -> Column[DayResult]:
    """Names."""

    def name(result: DayResult) -> str:
        return f"{result.policy} (best split)" if result is load.fixed else result.policy

    return Column("policy", name, align="left")


def highest(load: LoadComparison) -> str:
    """The load in words."""
    return (
        f"Highest rate {load.peak_share:.0%} of what the machines serve within the target: "
        f"{load.peak_per_s:,.4g} requests/s"
    )


def compared_table(load: LoadComparison) -> Table:
    """Attainment, value and hand-overs of each policy."""
    unit, scale = UNITS[load.fixed.machine.unit]
    columns: tuple[Column[DayResult], ...] = (
        policy_column(load),
        Column("in time", lambda result: result.slo_attainment, ".3%"),
        Column("worst 5 min", lambda result: result.worst_5min_attainment, ".2%"),
        Column("value,", lambda r: value_of(load, r), ",.1f", unit=unit, scale=scale),
        ratio_column(load, "best split", load.fixed),
        ratio_column(load, "oracle", load.oracle),
        Column("hand-overs", lambda result: result.handovers, ",d"),
        Column("", mark),
    )
    return table_of(columns, load.everything, title=highest(load), foot=oracle_in_words(load))


def compared_document(day: VirtualDay) -> Document:
    """The comparison alone."""
    settings, machine = day.settings, day.machine
    begins = day.headline.demand.begins
    return Document(
        title=f"Policies of a day on {settings.machines} x {settings.sweep.system.name}, "
        f"{begins:%a %Y-%m-%d %H:%M %Z}",
        verdict=f"target: {settings.slo}; {marks_in_words(machine.curve.required_share)}",
        sections=(
            *map(compared_table, day.loads),
            Lines(rows=tuple(_words(day))),
        ),
    )


def kept_in_words(day: VirtualDay) -> Iterator[str]:
    """That a run before simulated the replica, where it did."""
    if day.kept_unix_s is not None:
        at = datetime.fromtimestamp(day.kept_unix_s, tz=UTC)
        yield (
            f"the replica's curve and the training are those that a run of {at:%Y-%m-%d %H:%M} UTC "
            "computed and kept; --no-cache computes them anew"
        )


def _words(day: VirtualDay) -> Iterator[str]:
    yield from kept_in_words(day)
    yield f"value: {UNIT_WORDS[day.machine.unit]} per MWh at the meter; modelled, not measured"
    if day.settings.machines > 1:
        yield "machines are alike and independent; groups and splits are those of one"


def compared_data(day: VirtualDay) -> dict[str, Any]:
    """The headline's load on top, then all; values in base units."""
    return {
        "unit": f"{day.machine.unit.value}/MWh",
        "system": day.settings.sweep.system.name,
        "ultraservers": day.settings.machines,
        "slo": str(day.settings.slo),
        "required_share": day.machine.curve.required_share,
        "kept_unix_s": day.kept_unix_s,
        **load_data(day.headline),
        "loads": [load_data(load) for load in day.loads],
    }


def load_data(load: LoadComparison) -> dict[str, Any]:
    """One load: every policy, and what they are held against."""
    return {
        "peak_share": load.peak_share,
        "peak_per_s": load.peak_per_s,
        "kept_share": load.kept_share,
        "best_fixed": load.fixed.value,
        "best_fixed_policy": load.fixed.policy,
        "oracle": load.oracle.value,
        "oracle_bound": load.oracle_bound,
        "oracle_gap": load.oracle_gap,
        "policies": [_compared(load, each) for each in load.everything],
    }


def _compared(load: LoadComparison, result: DayResult) -> dict[str, Any]:
    return {
        "policy": result.policy,
        "attainment": result.slo_attainment,
        "worst_5min_attainment": result.worst_5min_attainment,
        "value": value_of(load, result),
        "handovers": result.handovers,
        "missed": mark(result) or None,
    }
