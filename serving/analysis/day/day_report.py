"""A virtual day as lines of text and as plain data for JSON, in base units."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from reporting.plain_text import table_lines
from serving.analysis.day.day_comparison import LoadComparison
from serving.analysis.day.day_method import assumptions, method
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_tables import (
    BILLION,
    EXA,
    HOUR_S,
    account_table,
    handover_table,
    headline_table,
)
from serving.analysis.day.exact_hour import BothWays, ExactHour
from serving.analysis.day.replica_run import RatePoint
from serving.analysis.day.slower_handovers import SlowerHandovers
from serving.analysis.day.virtual_day import VirtualDay


def day_lines(day: VirtualDay) -> Iterator[str]:
    """The day for a reader, the answer first."""
    settings, machine = day.settings, day.machine
    partition = day.choice.candidate.partition
    yield (
        f"{settings.sweep.model.name} serves and {machine.trained.model} is trained on "
        f"{settings.machines} x {settings.sweep.system.name}, "
        f"{settings.question.length_s / HOUR_S:g} hours from "
        f"{day.headline.demand.begins:%a %Y-%m-%d %H:%M %Z}"
    )
    yield (
        f"{machine.groups} groups of {partition.chips} chips (tp {partition.tp}, ep "
        f"{partition.ep}, lnc {partition.lnc}); one serves {machine.curve.capacity_per_s:.4g} "
        f"requests/s within the target, {machine.curve.saturated_per_s:.4g} at all; all of them "
        f"{machine.capacity_per_s:,.4g}"
    )
    yield (
        f"target: {settings.slo}; a policy with less than {machine.curve.required_share:.4g} of "
        "the requests within both is marked FAILED"
    )
    yield ""
    yield ("Tokens served and trained per MWh at the meter, and both weighed by their model flops")
    for load in day.loads:
        yield f"Highest rate {_of_capacity(load)}"
        yield from table_lines(headline_table(load), indent=2)
        yield ""
    yield "What that took"
    for load in day.loads:
        yield f"Highest rate {_of_capacity(load)}"
        yield from table_lines(account_table(load), indent=2)
        yield ""
    yield from _freed_lines(day)
    yield ""
    yield from _slower_lines(day)
    if day.check is not None:
        yield ""
        yield from _check_lines(day.check)
    yield ""
    yield "Method"
    yield from (f"  - {line}" for line in method(day))
    yield "Assumed, modelled, not measured"
    yield from (f"  - {line}" for line in assumptions(day))
    yield "Policies"
    described = {each.policy: each.describes for load in day.loads for each in load.everything}
    yield from (f"  - {words}" for words in described.values())
    walls = ", ".join(f"{name} {wall_s:.1f}" for name, wall_s in day.wall_s.items())
    yield f"wall time: {sum(day.wall_s.values()):.1f} s ({walls})"


def _of_capacity(load: LoadComparison) -> str:
    return (
        f"{load.peak_share:.0%} of what the machines serve within the target: "
        f"{load.peak_per_s:,.4g} requests/s"
    )


def _slower_lines(day: VirtualDay) -> Iterator[str]:
    """What hangs on the start that is assumed."""
    start_s, asked = day.settings.job.start_s, day.headline.results[0]
    yield (
        f"If a start took longer than the assumed {start_s:g} s, and a drain as much longer, at "
        f"{day.headline.peak_share:.0%}:"
    )
    for slow in day.slower:
        result = slow.load.results[0]
        yield (
            f"  {slow.start_s:g} s and {slow.drain_s:.0f} s: {result.policy} keeps "
            f"{result.slo_attainment:.3%}{'' if result.keeps_target else ' (FAILED)'}, trains "
            f"{result.training_tokens / BILLION:,.2f} Gtok rather than "
            f"{asked.training_tokens / BILLION:,.2f}, {result.flops_per_mwh / EXA:,.1f} Eflop/MWh "
            f"({result.flops_per_mwh / slow.load.fixed.flops_per_mwh:.2f} x the best fixed split)"
        )


def _freed_lines(day: VirtualDay) -> Iterator[str]:
    """Of the headline's load, what was freed and what that cost."""
    load = day.headline
    yield (
        f"Chip-hours freed and the cost of hand-overs at {load.peak_share:.0%}; the demand itself "
        f"stays {_unused(day):.1%} below its highest rate in the mean"
    )
    yield from table_lines(handover_table(load), indent=2)
    if day.settings.question.trace.is_schedule:
        yield (
            f"  The operator's own schedule freed {_unused(day):.1%} of the node-hours of its peak;"
            " of its peak's chip-hours, in this measure, "
            + ", ".join(
                f"{each.policy} frees {each.freed_share_of_peak:.1%}" for each in load.everything
            )
        )


def _unused(day: VirtualDay) -> float:
    """Of the highest rate, what the mean leaves free: what an operator with one node a unit of
    demand frees, who follows it exactly.
    """
    demand = day.headline.demand
    mean_per_s = float(demand.arrivals.mean()) / demand.interval_s
    return 1 - mean_per_s / day.headline.peak_per_s


def _check_lines(check: ExactHour) -> Iterator[str]:
    yield (
        f"Against the exact run: one group under {check.policy} from hour "
        f"{check.begin_s / HOUR_S:g} for {check.length_s / 60:g} min, {check.requests:,} requests "
        f"in {check.steps:,} steps and {check.parts} parts, {check.wall_s:.0f} s of wall time"
    )
    for name, both in (("TTFT", check.ttft), ("TPOT", check.tpot), ("both", check.both)):
        yield (
            f"  {name} kept: exact {both.exact:.3%}, walked {both.walked:.3%} "
            f"({100 * both.difference:+.3f} points)"
        )
    for name, times in (
        ("TTFT p99", check.ttft_p99_s),
        ("TPOT p99", check.tpot_p99_s),
        ("TPOT mean", check.tpot_mean_s),
    ):
        yield (
            f"  {name}: exact {1e3 * times.exact:,.4g} ms, walked {1e3 * times.walked:,.4g} ms "
            f"({times.relative:+.1%})"
        )
    tokens, joules = check.output_tokens, check.joules
    yield (
        f"  output tokens: exact {tokens.exact:,.0f}, walked {tokens.walked:,.0f} "
        f"({tokens.relative:+.2%}; chance of the count alone {check.output_tokens_sigma:.2%})"
    )
    yield (
        f"  energy of the chips: exact {joules.exact / 1e6:,.4g} MJ, walked "
        f"{joules.walked / 1e6:,.4g} MJ ({joules.relative:+.2%})"
    )


def day_data(day: VirtualDay) -> dict[str, Any]:
    """The same as plain data: the first policy at the headline's load on top, then everything."""
    headline = day.headline
    curve, partition = day.machine.curve, day.choice.candidate.partition
    return {
        **_result_data(headline.results[0]),
        "wall_s": sum(day.wall_s.values()),
        "wall_parts_s": day.wall_s,
        "peak_share": headline.peak_share,
        "system": day.settings.sweep.system.name,
        "ultraservers": day.settings.machines,
        "model": day.settings.sweep.model.name,
        "train_model": day.machine.trained.model,
        "slo": str(day.settings.slo),
        "required_share": curve.required_share,
        "length_s": day.settings.question.length_s,
        "begins": headline.demand.begins.isoformat(),
        "group": {
            "groups": day.machine.groups,
            "chips": partition.chips,
            "tp": partition.tp,
            "ep": partition.ep,
            "lnc": partition.lnc,
            "capacity_per_s": curve.capacity_per_s,
            "saturated_per_s": curve.saturated_per_s,
            "idle_watts": curve.idle_watts,
            "drain_s": day.handover.drain_s,
            "restore_s": day.handover.restore_s,
            "least_training_chips": day.machine.trained.least_chips,
        },
        "curve": [_fields(point) for point in curve.points],
        "demand_unused_share": _unused(day),
        "loads": [
            {
                "peak_share": load.peak_share,
                "peak_per_s": load.peak_per_s,
                "splits_tried": load.splits_tried,
                "best_fixed": load.fixed.policy,
                "policies": [
                    _result_data(each)
                    | {
                        "flops_per_mwh_over_never": each.flops_per_mwh / load.never.flops_per_mwh,
                        "flops_per_mwh_over_best_fixed": each.flops_per_mwh
                        / load.fixed.flops_per_mwh,
                        "flops_per_mwh_over_oracle": each.flops_per_mwh / load.oracle.flops_per_mwh,
                    }
                    for each in load.everything
                ],
            }
            for load in day.loads
        ],
        "slower_handovers": [_slower_data(each) for each in day.slower],
        "check": None if day.check is None else _check_data(day.check),
        "method": method(day),
        "assumptions": assumptions(day),
    }


def _result_data(result: DayResult) -> dict[str, Any]:
    totals = result.walk.totals
    return {
        "policy": result.policy,
        "describes": result.describes,
        "failed": not result.keeps_target,
        "slo_attainment": result.slo_attainment,
        "ttft_attainment": result.attainment("ttft_share"),
        "tpot_attainment": result.attainment("tpot_share"),
        "requests": result.requests,
        "served_requests": result.served_requests,
        "served_output_tokens": result.served_output_tokens,
        "served_input_tokens": result.served_input_tokens,
        "training_chip_hours": result.training_chip_hours,
        "training_tokens": result.training_tokens,
        "freed_chip_hours": result.freed_chip_hours,
        "freed_share": result.freed_share,
        "freed_share_of_peak": result.freed_share_of_peak,
        "energy_mwh": result.energy_mwh,
        "output_tokens_per_mwh": result.output_tokens_per_mwh,
        "training_tokens_per_mwh": result.training_tokens_per_mwh,
        "served_flops": result.served_flops,
        "training_flops": result.training_flops,
        "flops_per_mwh": result.flops_per_mwh,
        "handovers": {
            "groups_left": totals.left,
            "groups_came_back": totals.came_back,
            "job_starts": totals.job_starts,
            "group_seconds": totals.seconds,
            "joules": totals.joules,
            "training_tokens_lost": totals.tokens_lost,
            "requests_moved": result.walk.moved,
        },
    }


def _slower_data(slow: SlowerHandovers) -> dict[str, Any]:
    result, fixed = slow.load.results[0], slow.load.fixed
    return _result_data(result) | {
        "start_s": slow.start_s,
        "drain_s": slow.drain_s,
        "best_fixed": fixed.policy,
        "flops_per_mwh_over_best_fixed": result.flops_per_mwh / fixed.flops_per_mwh,
    }


def _fields(point: RatePoint | ExactHour) -> dict[str, Any]:
    return asdict(point)


def _check_data(check: ExactHour) -> dict[str, Any]:
    data = _fields(check)
    for name in data:
        both = getattr(check, name)
        if not isinstance(both, BothWays):
            continue
        data[name] |= {"difference": both.difference, "relative": both.relative}
    return data
