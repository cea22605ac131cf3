"""The headline curve as text and as plain data for JSON."""

from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any, Final

from emulator.power.token_cost import Prices, token_cost
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.shipped_fits import FITTED, PredictionInterval, shipped_fits
from emulator.specs.system import SystemSpec
from reporting.document import Column, Table, table_of
from reporting.plain_text import table_lines
from serving.analysis.pareto.pareto import MachineCurve, Pareto, thinned
from serving.analysis.pareto.pareto_claims import Finding, RatioCurve
from serving.analysis.steady_state.model_error import (
    USER_RATE,
    plain_error,
    plain_ranges,
    range_column,
)
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.sweep import Sweep

_RATIO_POINTS: Final = 9


Bottleneck = Callable[[Sweep, OperatingPoint], str]
"""What a point's step goes to, in words with its share."""


def point_table(
    machine: MachineCurve,
    pareto: Pareto,
    most: int,
    prices: Prices | None,
    bottleneck: Bottleneck | None = None,
) -> Table:
    """The envelope, at most `most` points; with prices, the cost of tokens."""

    def partition(name: str) -> Callable[[OperatingPoint], object]:
        return lambda point: getattr(point.candidate.partition, name)

    def dollars(point: OperatingPoint) -> float:
        assert prices is not None
        return dollars_per_million_output(point, machine.sweep.system, prices)

    shown = thinned(machine.on_envelope(), most)
    splits = {each.candidate.partition.attention_split for each in shown}
    attention = Column("attention", partition("attention_split"), align="left")
    limit: Column[OperatingPoint] = Column(
        "bottleneck",
        lambda point: bottleneck(machine.sweep, point) if bottleneck else "",
        align="left",
    )
    lnc = Column("lnc", partition("logical_core"), "d")

    def per_mw(point: OperatingPoint) -> float:
        return point.output_tokens_per_s_per_mw(pareto.basis)

    def ranged(
        column: Column[OperatingPoint], interval: PredictionInterval | None
    ) -> list[Column[OperatingPoint]]:
        assert column.value is not None
        return [column, *range_column(interval, column.value, scale=column.scale)]

    error = machine.sweep.assumptions.model_error
    rate, ttft = error.get("tokens_per_s"), error.get("ttft")
    columns: list[Column[OperatingPoint]] = [
        *ranged(
            Column("tok/s/user", lambda point: point.tokens_per_s_per_user, ",.1f"),
            error.get(USER_RATE),
        ),
        *ranged(Column("tok/s/MW", per_mw, ",.0f"), rate),
        *ranged(Column("tok/s", lambda point: point.output_tokens_per_s, ",.0f"), rate),
        Column("users", lambda point: point.users, ",.0f"),
        Column("precision", lambda point: point.precision, align="left"),
        Column("replicas", lambda point: point.candidate.replicas, "d"),
        *(Column(name, partition(name), "d") for name in _SIZES[:-1]),
        *([lnc] if any(partition("logical_core")(each) for each in shown) else []),
        *([attention] if splits != {AttentionSplit.HEADS} else []),
        Column("batch", lambda point: point.batch, "d"),
        Column("prefill", _prefill_words, align="left"),
        *ranged(Column("TTFT", lambda point: point.ttft_ns, ",.1f", unit="ms", scale=1e6), ttft),
        Column("W/chip", lambda point: point.chip_watts, ",.0f"),
        *([limit] if bottleneck else []),
        *(ranged(Column("$/M out", dollars, ",.3f"), rate and rate.inverse) if prices else []),
    ]
    return table_of(columns, shown)


def dollars_per_million_output(point: OperatingPoint, system: SystemSpec, prices: Prices) -> float:
    """Of the whole machine."""
    cost = token_cost(
        prices,
        point.rates,
        system=system,
        chips=system.chips.count,
        drawn_watts=point.drawn_watts,
    )
    assert cost.dollars_per_million_output is not None  # a point makes tokens
    return cost.dollars_per_million_output


def _prefill_words(point: OperatingPoint) -> str:
    if point.prefill is None:
        return "same chips"
    partition = point.prefill.partition
    return f"{point.prefill.replicas} x {partition.chips} (tp {partition.tp} ep {partition.ep})"


def assumption_lines(machine: MachineCurve, pareto: Pareto) -> Iterator[str]:
    """Assumptions behind a machine's points, a line each."""
    sweep, system = machine.sweep, machine.sweep.system
    shape, first = sweep.shape, machine.points[0]
    yield (
        f"{machine.name}: {sweep.model.name}, {shape.prompt_tokens:,} prompt and "
        f"{shape.output_tokens:,} output tokens, routing {_routing(sweep)}, "
        f"overlap {sweep.assumptions.overlap.value}, calibration {_calibration(sweep)}"
    )
    yield from system.turned_in_words()
    chips = system.chips.count
    watts = first.watts(pareto.basis) if pareto.basis != "drawn" else None
    power = "as drawn, point by point" if watts is None else f"{watts / chips:,.0f} W a chip"
    yield (
        f"{chips} chips; power {pareto.basis}: {power}; {len(machine.points):,} points, "
        f"{len(machine.envelope.x)} on the envelope"
    )


def _calibration(sweep: Sweep) -> str:
    name, chip = sweep.assumptions.calibration.name, sweep.system.chip
    if name == FITTED and chip.generation not in shipped_fits().everything.generations:
        return f"{name} (no measurements of {chip.name}: factors that all chips share)"
    return name


def _routing(sweep: Sweep) -> str:
    """Loads are means, without waits for a chip that is busier by chance."""
    return f"{sweep.routing} (expected loads)" if sweep.model.experts else "none (dense)"


def finding_table(found: tuple[Finding, ...]) -> Table:
    """The vendor's claims beside the model's answers."""
    columns: tuple[Column[Finding], ...] = (
        Column("the vendor's claim", lambda each: each.claim.measure.value, align="left"),
        Column("says", lambda each: f"{each.claim.ratio:g}x"),
        Column("the model", lambda each: each.in_words(), align="left"),
    )
    return table_of(columns, found)


def ratio_table(pareto: Pareto) -> Table:
    """Each further machine against the first, along interactivity."""
    first = pareto.machines[0].name
    rate = pareto.machines[0].sweep.assumptions.model_error.get("tokens_per_s")
    rows = [
        (f"{machine.name} / {first}", float(curve.x[index]), float(curve.ratio[index]))
        for machine, curve in pareto.ratios()
        for index in _evenly(curve)
    ]
    columns: list[Column[tuple[str, float, float]]] = [
        Column("tok/s/MW at equal tok/s/user", lambda row: row[0], align="left"),
        Column("tok/s/user", lambda row: row[1], ",.1f"),
        Column("ratio", lambda row: f"{row[2]:.2f}x"),
        *range_column(rate and rate.of_ratio, lambda row: row[2]),
    ]
    return table_of(columns, rows)


def _evenly(curve: RatioCurve) -> list[int]:
    steps = range(_RATIO_POINTS)
    return sorted({round(step * (len(curve.x) - 1) / (_RATIO_POINTS - 1)) for step in steps})


def as_data(pareto: Pareto, prices: Prices | None = None) -> dict[str, Any]:
    """Everything, in base units, for JSON."""
    return {
        "model": pareto.machines[0].sweep.model.name,
        "power_basis": pareto.basis.value,
        "machines": [_machine_data(machine, pareto, prices) for machine in pareto.machines],
        "ratios": [
            {
                "system": machine.name,
                "to": pareto.machines[0].name,
                "tokens_per_s_per_user": curve.x.tolist(),
                "tokens_per_s_per_mw_ratio": curve.ratio.tolist(),
                "ratio_error": _ratio_error(pareto),
            }
            for machine, curve in pareto.ratios()
        ],
        "vendor_claims": [_finding_data(each) for each in pareto.vendor_findings],
    }


def _ratio_error(pareto: Pareto) -> tuple[float, float] | None:
    rate = pareto.machines[0].sweep.assumptions.model_error.get("tokens_per_s")
    return None if rate is None else rate.of_ratio.around(1.0)


def _machine_data(machine: MachineCurve, pareto: Pareto, prices: Prices | None) -> dict[str, Any]:
    sweep, system = machine.sweep, machine.sweep.system
    enveloped = set(machine.envelope.chosen.tolist())
    error = sweep.assumptions.model_error
    rate = error.get("tokens_per_s")
    intervals = {
        "tpot_ns": error.get("tpot"),
        "ttft_ns": error.get("ttft"),
        "tokens_per_s_per_user": error.get(USER_RATE),
        **dict.fromkeys(_RATES, rate),
        "dollars_per_million_output_tokens": rate and rate.inverse,
    }
    points = []
    for index, point in enumerate(machine.points):
        held = {**point_data(point, pareto), "on_envelope": index in enveloped}
        if prices:
            dollars = dollars_per_million_output(point, system, prices)
            held["dollars_per_million_output_tokens"] = dollars
        held["range_80"] = plain_ranges(intervals, held)
        points.append(held)
    return {
        "system": machine.name,
        "chip": system.chip.name,
        "chips": system.chips.count,
        "units": system.units,
        **sweep.as_data(),
        "season": sweep.season.value,
        "model_error": plain_error(sweep.assumptions.model_error),
        "points": points,
    }


_SIZES: Final = ("chips", "tp", "ep", "lnc")
_POINT: Final = (
    *("tokens_per_s_per_user", "output_tokens_per_s", "input_tokens_per_s", "users", "precision"),
    *("batch", "tpot_ns", "ttft_ns", "chip_watts", "throttle_factor", "drawn_watts"),
    *("provisioned_watts", "all_in_watts"),
)
"""Attributes that JSON has under their own names."""
_RATES: Final = ("output_tokens_per_s", "input_tokens_per_s", "output_tokens_per_s_per_mw")


def point_data(point: OperatingPoint, pareto: Pareto) -> dict[str, Any]:
    """One point, flat, with units in the names."""
    return {
        **{name: getattr(point, name) for name in _POINT},
        "output_tokens_per_s_per_mw": point.output_tokens_per_s_per_mw(pareto.basis),
        **candidate_data(point.candidate),
        "prefill": point.prefill and candidate_data(point.prefill),
    }


def candidate_data(candidate: PartitionCandidate) -> dict[str, Any]:
    """Replicas of one partition, flat."""
    partition = candidate.partition
    sizes = {name: getattr(partition, name) for name in _SIZES}
    split = partition.attention_split.value
    return {"replicas": candidate.replicas, **sizes, "attention_split": split}


def _finding_data(found: Finding) -> dict[str, Any]:
    assert isfinite(found.largest), found
    return {
        "measure": found.claim.measure.value,
        "claimed_ratio": found.claim.ratio,
        "source": found.claim.source,
        "agrees": found.agrees,
        "axis": found.axis or None,
        "largest_ratio": found.largest,
        "largest_at": found.largest_at if found.axis else None,
        "smallest_ratio": found.smallest,
        "smallest_at": found.smallest_at if found.axis else None,
        "reached": [[each.low, each.high] for each in found.reached],
        "assumptions": dict(found.assumptions),
        "in_words": found.in_words(),
        "sentence": found.sentence(),
        **_reason_data(found),
    }


def _reason_data(found: Finding) -> dict[str, Any]:
    reason = found.reason
    if reason is None or reason.error is None:
        return {}
    return {
        "range_80": {"largest_ratio": reason.error.around(found.largest)},
        "reached_at_best": [[each.low, each.high] for each in reason.at_best],
        "reached_at_worst": [[each.low, each.high] for each in reason.at_worst],
    }


def report_lines(
    found: Pareto,
    rows: int,
    prices: Prices | None,
    bottleneck: Bottleneck | None = None,
    simulated: Iterable[str] = (),
) -> Iterator[str]:
    """Envelopes, then what was simulated, ratios of machines, and the vendor's claims."""
    for machine in found.machines:
        yield from assumption_lines(machine, found)
        yield from table_lines(point_table(machine, found, rows, prices, bottleneck))
        yield ""
    if lines := [*simulated]:
        yield from (*lines, "")
    if len(found.machines) > 1:
        yield from table_lines(ratio_table(found))
        yield ""
    if found.vendor_findings:
        yield from table_lines(finding_table(found.vendor_findings))
        yield from (f"- {each.sentence()}" for each in found.vendor_findings)
        yield ""
    yield "Modelled, not measured. Figures and their sources: ultraserve describe NAME."
    error = found.machines[0].sweep.assumptions.model_error_in_words()
    yield (
        "Confidence: steps are computed, none is drawn, so there is no sampling error; "
        f"{error}. By row: ultraserve validate."
    )
    if found.machines[0].sweep.assumptions.model_error:
        yield (
            "80 %: the prediction times these ratios, $ and tok/s/user the other way; tok/s/MW at "
            "the modelled watts; errors of two machines as if independent of each other (assumed)."
        )
