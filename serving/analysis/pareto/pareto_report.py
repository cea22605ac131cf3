"""The headline curve as lines of text and as plain data for JSON."""

from collections.abc import Iterator
from math import isfinite
from typing import Any, Final

from emulator.power.token_cost import Prices, token_cost
from emulator.specs.shipped_fits import FITTED, shipped_fits
from emulator.specs.system import SystemSpec
from serving.analysis.pareto.pareto import MachineCurve, Pareto, thinned
from serving.analysis.pareto.pareto_claims import Finding, RatioCurve
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.sweep import Sweep

Rows = list[tuple[str, ...]]

HEADER: Final = (
    "tok/s/user",
    "tok/s/MW",
    "tok/s",
    "users",
    "precision",
    "replicas",
    "chips",
    "tp",
    "ep",
    "lnc",
    "batch",
    "prefill",
    "TTFT ms",
    "W/chip",
)
"""A point of an envelope; with prices, "$/M out" follows."""

_RATIO_POINTS: Final = 9


def point_rows(machine: MachineCurve, pareto: Pareto, most: int, prices: Prices | None) -> Rows:
    """The envelope as rows of a table, a header first, with at most `most` points."""
    header = (*HEADER, "$/M out") if prices else HEADER
    rows: Rows = [header]
    for point in thinned(machine.on_envelope(), most):
        cells = _cells(point, pareto)
        if prices:
            dollars = dollars_per_million_output(point, machine.sweep.system, prices)
            cells = (*cells, f"{dollars:,.3f}")
        rows.append(cells)
    return rows


def dollars_per_million_output(point: OperatingPoint, system: SystemSpec, prices: Prices) -> float:
    """What the whole machine costs, for a million of its output tokens."""
    cost = token_cost(
        prices,
        point.rates,
        system=system,
        chips=system.chips.count,
        drawn_watts=point.drawn_watts,
    )
    assert cost.dollars_per_million_output is not None  # a point makes tokens
    return cost.dollars_per_million_output


def _cells(point: OperatingPoint, pareto: Pareto) -> tuple[str, ...]:
    partition, prefill = point.candidate.partition, point.prefill
    return (
        f"{point.tokens_per_s_per_user:,.1f}",
        f"{point.output_tokens_per_s_per_mw(pareto.basis):,.0f}",
        f"{point.output_tokens_per_s:,.0f}",
        f"{point.users:,.0f}",
        point.precision,
        f"{point.candidate.replicas}",
        f"{partition.chips}",
        f"{partition.tp}",
        f"{partition.ep}",
        f"{partition.lnc}",
        f"{point.batch}",
        "same chips" if prefill is None else _in_words(prefill),
        f"{point.ttft_ns / 1e6:,.1f}",
        f"{point.chip_watts:,.0f}",
    )


def _in_words(candidate: PartitionCandidate) -> str:
    partition = candidate.partition
    return f"{candidate.replicas} x {partition.chips} (tp {partition.tp} ep {partition.ep})"


def assumption_lines(machine: MachineCurve, pareto: Pareto) -> Iterator[str]:
    """What the points of a machine stand on, each in a line."""
    sweep, system = machine.sweep, machine.sweep.system
    shape, first = sweep.shape, machine.points[0]
    yield (
        f"{machine.name}: {sweep.model.name}, {shape.prompt_tokens:,} prompt and "
        f"{shape.output_tokens:,} output tokens, routing {_routing(sweep)}, "
        f"overlap {sweep.assumptions.overlap_name}, calibration {_calibration(sweep)}"
    )
    chips = system.chips.count
    watts = first.watts(pareto.basis) if pareto.basis != "drawn" else None
    power = "as drawn, point by point" if watts is None else f"{watts / chips:,.0f} W a chip"
    yield (
        f"{chips} chips; power {pareto.basis}: {power}; {len(machine.points):,} points, "
        f"{len(machine.envelope.x)} on the envelope"
    )


def _calibration(sweep: Sweep) -> str:
    name, chip = sweep.assumptions.calibration_name, sweep.system.chip.name
    if name == FITTED and chip not in shipped_fits().everything.machines:
        return f"{name} (no measurements of {chip}: factors that all chips share)"
    return name


def _routing(sweep: Sweep) -> str:
    """Loads are means: that a layer waits for a chip that is busier by chance is left out."""
    return f"{sweep.routing} (expected loads)" if sweep.model.experts else "none (dense)"


def finding_rows(found: tuple[Finding, ...]) -> Rows:
    """The vendor's claims beside the model's answers, a header first."""
    rows: Rows = [("the vendor's claim", "says", "the model")]
    rows += [
        (each.claim.measure.value, f"{each.claim.ratio:g}x", each.in_words()) for each in found
    ]
    return rows


def ratio_rows(pareto: Pareto) -> Rows:
    """Each further machine against the first, along interactivity, a header first."""
    rows: Rows = [("tok/s/MW at equal tok/s/user", "tok/s/user", "ratio")]
    first = pareto.machines[0].name
    for machine, curve in pareto.ratios():
        for index in _evenly(curve):
            x, ratio = float(curve.x[index]), float(curve.ratio[index])
            rows.append((f"{machine.name} / {first}", f"{x:,.1f}", f"{ratio:.2f}x"))
    return rows


def _evenly(curve: RatioCurve) -> list[int]:
    steps = range(_RATIO_POINTS)
    return sorted({round(step * (len(curve.x) - 1) / (_RATIO_POINTS - 1)) for step in steps})


def as_data(pareto: Pareto, prices: Prices | None = None) -> dict[str, Any]:
    """Everything, in base units, as JSON can hold it."""
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
            }
            for machine, curve in pareto.ratios()
        ],
        "vendor_claims": [_finding_data(each) for each in pareto.vendor_findings],
    }


def _machine_data(machine: MachineCurve, pareto: Pareto, prices: Prices | None) -> dict[str, Any]:
    sweep, system = machine.sweep, machine.sweep.system
    enveloped = set(machine.envelope.chosen.tolist())
    points = []
    for index, point in enumerate(machine.points):
        held = {**point_data(point, pareto), "on_envelope": index in enveloped}
        if prices:
            dollars = dollars_per_million_output(point, system, prices)
            held["dollars_per_million_output_tokens"] = dollars
        points.append(held)
    return {
        "system": machine.name,
        "chip": system.chip.name,
        "chips": system.chips.count,
        "prompt_tokens": sweep.shape.prompt_tokens,
        "output_tokens": sweep.shape.output_tokens,
        "routing": sweep.routing,
        "season": sweep.season.value,
        "overlap": sweep.assumptions.overlap_name,
        "calibration": sweep.assumptions.calibration_name,
        "hbm_utilization": sweep.terms.utilization,
        "points": points,
    }


def point_data(point: OperatingPoint, pareto: Pareto) -> dict[str, Any]:
    """One point, flat, with the unit of each figure in its name."""
    partition = point.candidate.partition
    data: dict[str, Any] = {
        "tokens_per_s_per_user": point.tokens_per_s_per_user,
        "output_tokens_per_s_per_mw": point.output_tokens_per_s_per_mw(pareto.basis),
        "output_tokens_per_s": point.output_tokens_per_s,
        "input_tokens_per_s": point.input_tokens_per_s,
        "users": point.users,
        "precision": point.precision,
        "replicas": point.candidate.replicas,
        "chips": partition.chips,
        "tp": partition.tp,
        "ep": partition.ep,
        "lnc": partition.lnc,
        "batch": point.batch,
        "tpot_ns": point.tpot_ns,
        "ttft_ns": point.ttft_ns,
        "chip_watts": point.chip_watts,
        "throttle_factor": point.throttle_factor,
        "drawn_watts": point.drawn_watts,
        "provisioned_watts": point.provisioned_watts,
        "all_in_watts": point.all_in_watts,
        "prefill": None,
    }
    if point.prefill is not None:
        own = point.prefill.partition
        data["prefill"] = {
            "replicas": point.prefill.replicas,
            "chips": own.chips,
            "tp": own.tp,
            "ep": own.ep,
            "lnc": own.lnc,
        }
    return data


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
        "readings": dict(found.readings),
        "in_words": found.in_words(),
    }
