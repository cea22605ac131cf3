"""A virtual day as a report and as plain data for JSON, in base units."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from emulator.specs.shipped_fits import PredictionInterval
from reporting.document import Document, Lines, Table
from serving.analysis.day.compared_policies import kept_in_words, marks_in_words
from serving.analysis.day.day_bill import bill_data, bill_tables, billing_policies
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_tables import (
    BILLION,
    EXA,
    account_table,
    assumptions,
    handover_table,
    headline_table,
    method,
)
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.exact_day_report import exact_data, exact_table
from serving.analysis.day.exact_hour import BothWays, ExactHour
from serving.analysis.day.partition_curve import PartitionCurve
from serving.analysis.day.slower_handovers import SlowerHandovers
from serving.analysis.day.virtual_day import VirtualDay
from serving.analysis.steady_state.model_error import (
    TRAINING_RATE,
    ModelError,
    in_range,
    plain_error,
    plain_ranges,
)


def day_document(day: VirtualDay) -> Document:
    """The day for a reader, the answer first."""
    settings, machine = day.settings, day.machine
    partition = day.choice.candidate.partition
    described = {each.policy: each.describes for load in day.loads for each in load.everything}
    error = settings.sweep.assumptions.model_error
    rate = error.get("tokens_per_s")
    walls = ", ".join(f"{name} {wall_s:.1f}" for name, wall_s in day.wall_s.items())
    return Document(
        title=f"{settings.sweep.model.name} serves and {machine.trained.model} is trained on "
        f"{settings.machines} x {settings.sweep.system.name}, "
        f"{settings.question.length_s / HOUR_S:g} hours from "
        f"{day.headline.demand.begins:%a %Y-%m-%d %H:%M %Z}",
        subtitle=f"{machine.groups} groups{_of_each(settings.machines)} of {_group_in_words(day)} "
        f"({partition.division}); one "
        f"serves {machine.curve.capacity_per_s:.4g} "
        f"requests/s within the target{in_range(rate, machine.curve.capacity_per_s)}, "
        f"{machine.curve.saturated_per_s:.4g} at all"
        f"{in_range(rate, machine.curve.saturated_per_s)}; all of them "
        f"{machine.capacity_per_s:,.4g}{in_range(rate, machine.capacity_per_s)}",
        verdict=f"target: {settings.slo}; {marks_in_words(machine.curve.required_share)}",
        sections=(
            Lines(
                rows=(
                    "Tokens served and trained per MWh at the meter, and both weighed by their "
                    "model flops",
                )
            ),
            *(headline_table(load, error) for load in day.loads),
            Lines(rows=("What that took",)),
            *(account_table(load) for load in day.loads),
            *bill_tables(day),
            _freed_table(day),
            _slower_lines(day),
            *([] if day.exact is None else [exact_table(day.exact)]),
            *([] if day.check is None else [_check_section(day.check, error)]),
            Lines(title="Method", rows=tuple(f"- {line}" for line in method(day))),
            Lines(
                title="Assumed, modelled, not measured",
                rows=tuple(f"- {line}" for line in assumptions(day)),
            ),
            Lines(title="Policies", rows=tuple(f"- {words}" for words in described.values())),
            Lines(
                rows=(*kept_in_words(day), f"wall time: {sum(day.wall_s.values()):.1f} s ({walls})")
            ),
        ),
    )


def _group_in_words(day: VirtualDay) -> str:
    chips = day.choice.candidate.partition.chips
    if day.settings.group_chips is None:
        return f"{chips} chips"
    return f"{day.machine.group_chips} chips, parts of one engine of {chips}"


def _of_each(machines: int) -> str:
    return " of each machine, all alike," if machines > 1 else ""


def _slower_lines(day: VirtualDay) -> Lines:
    asked = day.headline.results[0]

    def words(slow: SlowerHandovers) -> str:
        result = slow.load.results[0]
        return (
            f"{slow.start_s:g} s and {slow.drain_s:.0f} s: {result.policy} keeps "
            f"{result.slo_attainment:.3%}{'' if result.keeps_target else ' (FAILED)'}, trains "
            f"{result.training_tokens / BILLION:,.2f} Gtok rather than "
            f"{asked.training_tokens / BILLION:,.2f}, {result.flops_per_mwh / EXA:,.1f} Eflop/MWh "
            f"({result.value / slow.load.fixed.value:.2f} x the best fixed split)"
        )

    return Lines(
        title=f"If a start took longer than the assumed {day.settings.job.start_s:g} s, and a "
        f"drain as much longer, at {day.headline.peak_share:.0%}:",
        rows=tuple(map(words, day.slower)),
    )


def _freed_table(day: VirtualDay) -> Table:
    load = day.headline
    title = (
        f"Chip-hours freed and the cost of hand-overs at {load.peak_share:.0%}; the demand itself "
        f"stays {_unused(day):.1%} below its highest rate in the mean"
    )
    if not day.settings.question.trace.is_schedule:
        return handover_table(load, title=title)
    policies = (f"{each.policy} frees {each.freed_share_of_peak:.1%}" for each in load.everything)
    foot = (
        f"The operator's own schedule freed {_unused(day):.1%} of the node-hours of its peak; of "
        f"its peak's chip-hours, in this measure, {', '.join(policies)}"
    )
    return handover_table(load, title=title, foot=foot)


def _unused(day: VirtualDay) -> float:
    """Share of the peak rate that the mean leaves free, as if capacity followed demand exactly."""
    demand = day.headline.demand
    mean_per_s = float(demand.arrivals.mean()) / demand.interval_s
    return 1 - mean_per_s / day.headline.peak_per_s


def _check_section(check: ExactHour, error: ModelError) -> Lines:
    title = (
        f"Against the exact run: one group under {check.policy} from hour "
        f"{check.begin_s / HOUR_S:g} for {check.length_s / 60:g} min, {check.requests:,} requests "
        f"in {check.steps:,} steps and {check.parts} parts, {check.wall_s:.0f} s of wall time"
    )
    return Lines(title=title, rows=tuple(_check_lines(check, error)))


def _check_lines(check: ExactHour, error: ModelError) -> Iterator[str]:
    for name, both in (("TTFT", check.ttft), ("TPOT", check.tpot), ("both", check.both)):
        yield (
            f"{name} kept: exact {both.exact:.3%}, walked {both.walked:.3%} "
            f"({100 * both.difference:+.3f} points)"
        )
    for name, metric, times in (
        ("TTFT p99", "p99_ttft", check.ttft_p99_s),
        ("TPOT p99", "p99_tpot", check.tpot_p99_s),
        ("TPOT mean", "tpot", check.tpot_mean_s),
    ):
        yield (
            f"{name}: exact {1e3 * times.exact:,.4g} ms"
            f"{in_range(error.get(metric), times.exact, scale=1e-3)}, walked "
            f"{1e3 * times.walked:,.4g} ms ({times.relative:+.1%})"
        )
    tokens, joules = check.output_tokens, check.joules
    yield (
        f"output tokens: exact {tokens.exact:,.0f}, walked {tokens.walked:,.0f} "
        f"({tokens.relative:+.2%}; chance of the count alone {check.output_tokens_sigma:.2%})"
    )
    yield (
        f"energy of the chips: exact {joules.exact / 1e6:,.4g} MJ, walked "
        f"{joules.walked / 1e6:,.4g} MJ ({joules.relative:+.2%})"
    )


def day_data(day: VirtualDay) -> dict[str, Any]:
    """The same as plain data: the headline's first policy on top, then everything."""
    headline = day.headline
    curve = day.machine.curve
    error = day.settings.sweep.assumptions.model_error
    rate = error.get("tokens_per_s")
    billed_by = billing_policies(day)
    return {
        **_result_data(headline.results[0], error),
        "model_error": plain_error(error),
        "wall_s": sum(day.wall_s.values()),
        "wall_parts_s": day.wall_s,
        "kept_unix_s": day.kept_unix_s,
        "peak_share": headline.peak_share,
        "system": day.settings.sweep.system.name,
        "ultraservers": day.settings.machines,
        "value_unit": f"{day.machine.unit.value}/MWh",
        "model": day.settings.sweep.model.name,
        "train_model": day.machine.trained.model,
        "slo": str(day.settings.slo),
        "required_share": curve.required_share,
        "length_s": day.settings.question.length_s,
        "begins": headline.demand.begins.isoformat(),
        "group": _group_data(day, rate),
        "curve": [asdict(point) for point in curve.points],
        "curves": {
            serving: [asdict(point) for point in of.points]
            for serving, of in zip(curve.serving, curve.curves, strict=True)
        }
        if isinstance(curve, PartitionCurve)
        else None,
        "demand_unused_share": _unused(day),
        "loads": [
            {
                "peak_share": load.peak_share,
                "peak_per_s": load.peak_per_s,
                "kept_share": load.kept_share,
                "best_fixed": load.fixed.policy,
                "oracle_bound": load.oracle_bound,
                "oracle_gap": load.oracle_gap,
                "bills": bill_data(load, billed_by),
                "policies": [
                    _result_data(each, error)
                    | {
                        f"flops_per_mwh_over_{name}": each.flops_per_mwh / other.flops_per_mwh
                        for name, other in (
                            ("never", load.never),
                            ("best_fixed", load.fixed),
                            ("oracle", load.oracle),
                        )
                    }
                    for each in load.everything
                ],
            }
            for load in day.loads
        ],
        "slower_handovers": [_slower_data(each, error) for each in day.slower],
        "exact": None if day.exact is None else exact_data(day.exact),
        "check": None if day.check is None else _check_data(day.check),
        "method": method(day),
        "assumptions": assumptions(day),
    }


def _group_data(day: VirtualDay, rate: PredictionInterval | None) -> dict[str, Any]:
    """A replica and what it serves."""
    curve, partition = day.machine.curve, day.choice.candidate.partition
    return {
        "groups": day.machine.groups,
        "chips": day.machine.group_chips,
        "engine_chips": partition.chips,
        "tp": partition.tp,
        "ep": partition.ep,
        "lnc": partition.lnc,
        "attention_split": partition.attention_split.value,
        "capacity_per_s": curve.capacity_per_s,
        "saturated_per_s": curve.saturated_per_s,
        "range_80": plain_ranges(
            dict.fromkeys(("capacity_per_s", "saturated_per_s"), rate),
            {
                "capacity_per_s": curve.capacity_per_s,
                "saturated_per_s": curve.saturated_per_s,
            },
        ),
        "idle_watts": curve.idle_watts,
        "drain_s": day.handover.drain_s,
        "restore_s": day.handover.restore_s,
        "least_training_chips": day.machine.trained.least_chips,
        "training_mfu": day.machine.trained.mfu,
    }


_RESULT: Final = (
    *("policy", "describes", "slo_attainment", "worst_5min_attainment"),
    *("requests", "served_requests"),
    *("served_output_tokens", "served_input_tokens", "training_chip_hours", "training_tokens"),
    *("freed_chip_hours", "freed_share", "freed_share_of_peak", "energy_mwh"),
    *("output_tokens_per_mwh", "training_tokens_per_mwh", "served_flops", "training_flops"),
    *("flops_per_mwh", "value"),
)
"""Attributes that JSON has under their own names."""


def _result_data(result: DayResult, error: ModelError) -> dict[str, Any]:
    totals = result.totals
    return {name: getattr(result, name) for name in _RESULT} | {
        "range_80": plain_ranges(
            {
                "output_tokens_per_mwh": error.get("tokens_per_s"),
                "training_tokens_per_mwh": error.get(TRAINING_RATE),
            },
            {
                "output_tokens_per_mwh": result.output_tokens_per_mwh,
                "training_tokens_per_mwh": result.training_tokens_per_mwh,
            },
        ),
        "failed": not result.keeps_target,
        "failed_worst_5min": not result.keeps_worst_5min,
        "ttft_attainment": result.attainment("ttft_share"),
        "tpot_attainment": result.attainment("tpot_share"),
        "handovers": {
            "groups_left": totals.left,
            "groups_came_back": totals.came_back,
            "job_starts": totals.job_starts,
            "group_seconds": totals.seconds,
            "joules": totals.joules,
            "training_tokens_lost": totals.tokens_lost,
            "requests_moved": result.moved_requests,
        },
    }


def _slower_data(slow: SlowerHandovers, error: ModelError) -> dict[str, Any]:
    result, fixed = slow.load.results[0], slow.load.fixed
    return _result_data(result, error) | {
        "start_s": slow.start_s,
        "drain_s": slow.drain_s,
        "best_fixed": fixed.policy,
        "flops_per_mwh_over_best_fixed": result.flops_per_mwh / fixed.flops_per_mwh,
    }


def _check_data(check: ExactHour) -> dict[str, Any]:
    data = asdict(check)
    for name in data:
        both = getattr(check, name)
        if not isinstance(both, BothWays):
            continue
        data[name] |= {"difference": both.difference, "relative": both.relative}
    return data
