"""The simulated points of the curve as text, and as plain data for JSON."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from emulator.power.efficiency import PowerBasis
from loadgen.records.plain_number import counted
from reporting.document import Column, Table, table_of
from reporting.numbers import four_digits
from reporting.plain_text import table_lines
from serving.analysis.pareto.pareto import MachineCurve, Pareto
from serving.analysis.pareto.pareto_report import candidate_data
from serving.analysis.pareto.simulated_points import RateLoss, SimulatedCurve, SimulatedPoint
from serving.analysis.plan.plan_race import LAST_TIMES
from serving.analysis.plan.plan_task import FRESH_RUNS, FRESH_TIMES


def simulated_lines(curve: SimulatedCurve, found: Pareto, most: int) -> Iterator[str]:
    """What was asked, a table of at most `most` points of each machine, and where the curve and the
    best of them part.
    """
    target = curve.target
    yield f"simulated under the SLO: {target.slo}; Poisson arrivals; {target.lengths_in_words}"
    judged = target.check.judged
    yield (
        "losses: shares of the steady state's rate, which the mean step allows within the target; "
        f"by {LAST_TIMES * judged:,} requests or more to each rate, and for certainty as a plan "
        f"judges, by up to {FRESH_RUNS * FRESH_TIMES * judged:,} of other seeds"
    )
    by_machine = [(machine, curve.of(machine, found.basis)) for machine in found.machines]
    shown = [point for _, points in by_machine for point in points[:most]]
    if shown:
        yield from table_lines(simulated_table(shown, found.basis))
    for machine, points in by_machine:
        yield _parting(machine, points, curve, found.basis)
    yield from _counts(curve, sum(len(points) for _, points in by_machine))


def simulated_table(points: list[SimulatedPoint], basis: PowerBasis) -> Table:
    """A row a point."""

    def lost(loss: RateLoss) -> Callable[[SimulatedPoint], float | None]:
        return lambda point: point.losses().get(loss)

    several = len({point.system.name for point in points}) > 1
    columns: list[Column[SimulatedPoint]] = [
        *([Column("system", lambda each: each.system.name, align="left")] if several else []),
        Column("tok/s/user", lambda each: each.tokens_per_s_per_user, ",.1f"),
        Column("tok/s/MW", lambda each: each.tokens_per_s_per_mw(basis), ",.0f"),
        Column("requests/s", _rate),
        Column("steady state", lambda each: each.steady_requests_per_s, four_digits),
        *(Column(loss.value, lost(loss), _percent) for loss in RateLoss),
        Column("the most", lambda each: each.largest_loss or "-", align="left"),
        Column("precision", lambda each: each.setting.option.point.precision, align="left"),
        Column("setting", lambda each: each.setting.words, align="left"),
    ]
    return table_of(columns, points)


def _rate(point: SimulatedPoint) -> str:
    return f"{'' if point.rate.is_found else '>= '}{four_digits(point.rate.requests_per_s)}"


def _percent(share: float) -> str:
    return f"{100 * share:,.1f} %"


def _parting(
    machine: MachineCurve, points: list[SimulatedPoint], curve: SimulatedCurve, basis: PowerBasis
) -> str:
    """What of the curve at the target's tokens/s/user the best simulated point has, and why."""
    if not points:
        tried = any(each.system.name == machine.name for each in curve.points)
        which = "of those simulated none keeps the target" if tried else "none was simulated"
        return f"{machine.name}: {which}"
    best, slo = points[0], curve.target.slo
    found = best.tokens_per_s_per_mw(basis)
    said = f"{machine.name}: the best has {found:,.0f} tok/s/MW"
    places = {
        "as the target allows": None if slo.tpot_s is None else 1 / slo.tpot_s,
        "as it has itself": best.tokens_per_s_per_user,
    }
    for words, per_user in places.items():
        height = (
            float("nan") if per_user is None else float(machine.envelope.at(np.array(per_user)))
        )
        if not np.isnan(height):
            said += (
                f", {100 * found / height:.3g} % of the curve's {height:,.0f} at {per_user:,.1f} "
                f"tok/s/user, {words}"
            )
    loss = best.largest_loss
    if loss is not None:
        said += f"; it loses the most to {loss}, {_percent(best.losses()[loss])}"
    elif best.losses():
        said += "; its traffic costs it nothing of its steady state"
    return said


def _counts(curve: SimulatedCurve, kept: int) -> Iterator[str]:
    of = f"of {counted(curve.candidates, 'partition')} of the curve"
    said = f"{len(curve.points):,} {of} simulated, the target is kept at some rate by {kept:,}"
    if curve.unable:
        said += f"; {curve.unable:,} more miss it on an idle machine"
    yield said
    if not curve.is_whole:
        yield "cut short: the others may keep more (--budget)"


def simulated_data(curve: SimulatedCurve, basis: PowerBasis) -> dict[str, Any]:
    """The same in base units; shares of the steady state's rate."""
    return {
        "slo": str(curve.target.slo),
        "lengths": curve.target.lengths_in_words,
        "partitions": curve.candidates,
        "partitions_unable": curve.unable,
        "is_whole": curve.is_whole,
        "points": [_point_data(each, basis) for each in curve.points],
    }


def _point_data(point: SimulatedPoint, basis: PowerBasis) -> dict[str, Any]:
    option, rate = point.setting.option, point.rate
    check = rate.check
    return {
        "system": point.system.name,
        "precision": option.point.precision,
        **candidate_data(option.candidate),
        "prefill": option.point.prefill and candidate_data(option.point.prefill),
        "prefill_policy": point.setting.policy,
        "tokens_per_s_per_user": point.tokens_per_s_per_user,
        "output_tokens_per_s_per_mw": point.tokens_per_s_per_mw(basis),
        "steady_tokens_per_s_per_user": option.point.tokens_per_s_per_user,
        "steady_output_tokens_per_s_per_mw": point.steady_tokens_per_s_per_mw(basis),
        "requests_per_s": rate.requests_per_s,
        "is_found": rate.is_found,
        "missed_above": rate.missed,
        "chip_watts_of_replica": check and check.replica_chip_watts,
        "percentiles_s": {} if check is None else check.percentiles_s,
        "steady_requests_per_s": point.steady_requests_per_s,
        "kept_requests_per_s": point.kept.requests_per_s,
        "rungs_requests_per_s": {
            loss.value: kept.requests_per_s for loss, kept in point.rungs.items()
        },
        "losses": {loss.value: share for loss, share in point.losses().items()},
        "largest_loss": point.largest_loss,
    }
