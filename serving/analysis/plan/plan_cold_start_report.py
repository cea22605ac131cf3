"""A plan's cold starts in words and as data."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from loadgen.records.plain_number import counted
from reporting.document import Lines, Section
from reporting.numbers import four_digits
from serving.analysis.plan.class_demand import measure_words
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_cold_start import ColdStartGap, GapCase, PlanColdStart


def cold_start_section(plan: Plan, found: PlanColdStart) -> Section:
    """Until a new replica serves, what is lost meanwhile, and what must be kept warm."""
    return Lines(
        title="until a new replica serves (cold start), simulated:",
        rows=tuple(_lines(plan, found)),
    )


def _lines(plan: Plan, found: PlanColdStart) -> Iterator[str]:
    one = found.one
    assumed = " (assumed)" if one.tray_rate.assumed else ""
    yield (
        f"a new replica serves after {four_digits(one.total_s)} s: {one.start_s:g} s until its "
        f"processes run and compiled models are loaded (assumed: --start-seconds), "
        f"{four_digits(one.read_s)} s to read {one.read_bytes / 1e9:,.4g} GB of weights at "
        f"{one.tray_rate.value / 1e9:g} GB/s a tray{assumed}, {four_digits(one.warm_up_s)} s of "
        "warm-up"
    )
    for gap in found.gaps:
        yield from _gap_lines(plan, gap)
    yield f"of a tray: {one.tray_rate.source}"
    if plan.choice.check.prefill is not None:
        yield "a replica is a unit of both pools here"
    yield (
        "assumed: its machine is there and the start begins at once; the router gives each replica "
        "that serves an equal part; one that stays is simulated for all; what ran on a lost one "
        "begins anew on the others"
    )


def _gap_lines(plan: Plan, gap: ColdStartGap) -> Iterator[str]:
    what = "a replica lost" if gap.surge is None else f"{100 * gap.surge:.3g} % more at once"
    if not gap.cases:
        yield f"{what}: not simulated, the time was over (--budget)"
        return
    first = gap.cases[0]
    yield f"{what}: {_case(first, gap)}"
    if first.kept:
        yield "  nothing more must be kept warm"
        return
    fewest = gap.fewest
    tried = ", ".join(f"{each.warm:,}" for each in gap.cases)
    if fewest is None:
        cut = "" if gap.is_whole else "; the time was over (--budget)"
        yield (
            f"  no number kept warm that was tried keeps it through that time ({tried}): "
            f"{_shares(gap.cases[-1])}{cut}"
        )
        return
    machines = plan.machines_for(fewest.before)
    least = "" if gap.is_whole else "at most "
    yield (
        f"  {least}{counted(fewest.warm, 'replica')} must be kept warm to keep it through that "
        f"time ({fewest.before:,} in all, on {counted(machines, 'machine')}; simulated with "
        f"{tried}): {_shares(fewest)}"
    )


def _case(case: GapCase, gap: ColdStartGap) -> str:
    if not case.during:
        return (
            f"none is left, the {gap.requests:,.0f} requests of the {four_digits(gap.gap_s)} s "
            "until another serves wait or are refused"
        )
    starting = case.after - case.during
    starts = f"{counted(starting, 'replica')} start{'s' * (starting == 1)}"
    verdict = "the target is kept" if case.kept else "the target is MISSED"
    anew = ""
    if case.begun_anew:
        anew = f"; {four_digits(case.begun_anew)} that ran on it, on average, begin anew"
    return (
        f"{verdict} by {counted(case.during, 'replica')} while {starts}, of "
        f"{gap.requests:,.0f} requests in {four_digits(gap.gap_s)} s {_shares(case)} "
        f"({case.simulated:,} simulated); in as long after it {_after(case)}{anew}"
    )


def _shares(case: GapCase) -> str:
    if not case.limits:
        return "none serves"
    return ", ".join(
        f"{measure_words(each.name)} {100 * each.during:.4g} % of {each.percentile:g} %"
        for each in case.limits
    )


def _after(case: GapCase) -> str:
    return ", ".join(f"{measure_words(each.name)} {100 * each.after:.4g} %" for each in case.limits)


def cold_start_data(plan: Plan, found: PlanColdStart) -> dict[str, Any]:
    """The same in base units."""
    one = found.one
    return {
        "replica_s": one.total_s,
        "start_s": one.start_s,
        "read_s": one.read_s,
        "read_bytes": one.read_bytes,
        "tray_read": one.tray_rate,
        "warm_up_s": one.warm_up_s,
        "gaps": [
            {
                "what": "a replica lost" if gap.surge is None else "surge",
                "surge_share": gap.surge,
                "gap_s": gap.gap_s,
                "requests": gap.requests,
                "is_whole": gap.is_whole,
                "replicas_kept_warm": None if gap.fewest is None else gap.fewest.warm,
                "ultraservers": None
                if gap.fewest is None
                else plan.machines_for(gap.fewest.before),
                "cases": [{**asdict(case), "kept": case.kept} for case in gap.cases],
            }
            for gap in found.gaps
        ],
    }
