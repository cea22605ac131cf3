"""The knee of throughput against latency: the load beyond which more costs more than it brings.

Kleinrock's power: the knee maximizes throughput over mean response time, where a line from the
origin touches the curve of latency over throughput (L. Kleinrock, "Power and deterministic rules of
thumb for probabilistic problems in computer communications", ICC 1979). It needs no scale,
threshold or choice of axes, and is known for simple queues: half of the capacity for M/M/1, 2 -
sqrt(2) = 0.586 of it for M/D/1; for a closed loop without chance, the concurrency at which the
bottleneck is just busy, N* = R0 x Xmax.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import Knee, SweepPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Power:
    """Throughput over latency at a load, with its interval."""

    load: float
    throughput_per_s: float
    latency_ms: float
    power: Estimate


def find_knee(points: Iterable[SweepPoint]) -> Knee | None:
    """Find the knee among the measured loads; None if fewer than two have both figures.

    Runs at one load count as their mean.
    """
    ordered = sorted(points, key=lambda point: point.load)
    powers = [
        power
        for load, runs in groupby(ordered, key=lambda point: point.load)
        if (power := _power(load, list(runs))) is not None
    ]
    if len(powers) < 2:
        return None
    best = max(powers, key=lambda each: each.power.value)
    least = best.power.value if best.power.low is None else best.power.low
    alike = [
        each.load
        for each in powers
        if (each.power.value if each.power.high is None else each.power.high) >= least
    ]
    return Knee(
        load=best.load,
        requests_per_s=best.throughput_per_s,
        e2e_mean_ms=best.latency_ms,
        power=best.power.value,
        low=min(alike),
        high=max(alike),
        at_edge=best.load in (powers[0].load, powers[-1].load),
    )


def _power(load: float, runs: Sequence[SweepPoint]) -> _Power | None:
    pairs = [
        (figures.requests_per_s, figures.e2e_mean_ms)
        for figures in (run.figures for run in runs)
        if figures.requests_per_s is not None and figures.e2e_mean_ms is not None
    ]
    if not pairs:
        return None
    rate = _mean([pair[0] for pair in pairs])
    latency = _mean([pair[1] for pair in pairs])
    if not latency.value > 0:
        return None
    return _Power(
        load=load,
        throughput_per_s=rate.value,
        latency_ms=latency.value,
        power=_quotient(rate, latency),
    )


def _mean(values: Sequence[Estimate]) -> Estimate:
    """Mean of independent runs; its interval narrows with their number."""
    count = len(values)
    value = sum(each.value for each in values) / count
    lows = [each.value - each.low for each in values if each.low is not None]
    highs = [each.high - each.value for each in values if each.high is not None]
    if len(lows) < count or len(highs) < count:
        return Estimate(value=value)
    # Independent half-widths add as squares.
    low = value - sum(low**2 for low in lows) ** 0.5 / count
    high = value + sum(high**2 for high in highs) ** 0.5 / count
    return Estimate(value=value, low=low, high=high)


def _quotient(rate: Estimate, latency_ms: Estimate) -> Estimate:
    """Throughput per second of latency.

    The interval is the latency's alone: at a given load throughput is that load or the capacity,
    and where both vary they vary together.
    """
    value = rate.value / latency_ms.value * 1e3
    if latency_ms.low is None or latency_ms.high is None or latency_ms.low <= 0:
        return Estimate(value=value)
    return Estimate(
        value=value, low=rate.value / latency_ms.high * 1e3, high=rate.value / latency_ms.low * 1e3
    )
