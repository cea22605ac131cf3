"""The headline curve: efficiency of machines against interactivity."""

from dataclasses import dataclass

import numpy as np

from emulator.errors import ConfigError
from emulator.power.efficiency import PowerBasis
from serving.analysis.pareto.pareto_claims import (
    BASE_SYSTEM,
    NEW_SYSTEM,
    ClaimMeasure,
    Curves,
    Finding,
    RatioCurve,
    findings,
    ratio_along,
)
from serving.analysis.steady_state.envelope import Envelope
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.pools import pooled_points
from serving.analysis.steady_state.sweep import Sweep, operating_points
from serving.simulator import THIS_PROCESS, SimulationWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCurve:
    """The sorted points of one system, and their envelopes."""

    sweep: Sweep
    points: tuple[OperatingPoint, ...]
    curves: Curves

    @property
    def name(self) -> str:
        """The system's."""
        return self.sweep.system.name

    @property
    def envelope(self) -> Envelope:
        """Output tokens/s/MW against tokens/s/user."""
        return self.curves.tokens_per_mw

    def on_envelope(self) -> tuple[OperatingPoint, ...]:
        """By rising interactivity."""
        return tuple(self.points[index] for index in self.envelope.chosen.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """Curves of machines with one model; `vendor_findings` need both machines of the claims."""

    machines: tuple[MachineCurve, ...]
    basis: PowerBasis
    vendor_findings: tuple[Finding, ...]

    def ratios(self) -> tuple[tuple[MachineCurve, RatioCurve], ...]:
        """Tokens/s/MW of each further machine over the first's, at equal interactivity."""
        first, *others = self.machines
        return tuple(
            (other, ratio_along(first.curves, other.curves, ClaimMeasure.TOKENS_PER_MW))
            for other in others
        )


def pareto(
    sweeps: tuple[Sweep, ...],
    *,
    basis: PowerBasis = PowerBasis.PROVISIONED,
    aggregated: bool = True,
    pools: bool = False,
    workers: SimulationWorkers = THIS_PROCESS,
) -> Pareto:
    """Sweep every machine; raises ConfigError for an unanswerable sweep or a repeated machine."""
    names = [sweep.system.name for sweep in sweeps]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("systems", name, "each system once")
    machines = []
    for sweep in sweeps:
        points = operating_points(sweep, workers=workers) if aggregated else ()
        if pools:
            points += pooled_points(sweep, workers=workers)
        curves = Curves.of(sweep.system, points, basis=basis)
        machines.append(MachineCurve(sweep=sweep, points=points, curves=curves))
    by_name = {machine.name: machine for machine in machines}
    both = BASE_SYSTEM in by_name and NEW_SYSTEM in by_name
    return Pareto(
        machines=tuple(machines),
        basis=basis,
        vendor_findings=findings(
            by_name[BASE_SYSTEM].curves,
            by_name[NEW_SYSTEM].curves,
            by_name[NEW_SYSTEM].sweep.assumptions.model_error,
        )
        if both
        else (),
    )


def thinned(points: tuple[OperatingPoint, ...], most: int) -> tuple[OperatingPoint, ...]:
    """At most `most` points, evenly spaced, first and last included."""
    if len(points) <= most:
        return points
    kept = np.unique(np.linspace(0, len(points) - 1, most).round().astype(np.int64))
    return tuple(points[index] for index in kept.tolist())
