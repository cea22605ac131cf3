"""Comparable figures of one run, each with bootstrap replicas.

The moving block bootstrap gives a figure's spread over other runs like this one. Time is cut into
cells; another run is made of blocks of neighbouring cells, drawn with replacement (Künsch 1989;
wrapped around the end, Politis and Romano 1992). Block length and assumptions (a steady load,
dependence shorter than a block) are those of `loadgen.measures.intervals`.

Cells are weighted, not copied, so that a figure of all other runs is one matrix product.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from loadgen.measures.intervals import block_cells, block_freedom, variance_factor
from loadgen.measures.measurement import MeasuredClass, measured_classes, measures_of
from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.measures.samples import CELLS, Samples
from loadgen.records.arrays import Float64s
from loadgen.records.run_record import RunRecord

REPLICATES: Final = 400
"""Bootstrapped runs. A standard error is then known to 1 / sqrt(2 x 400), 3.5 %."""

BIN_WIDTH: Final = 1e-3
"""Samples are counted in bins 0.1 % wide, each represented by its mean: far below the noise of
percentiles of so many samples.
"""

SMALLEST: Final = 1e-9  # of the largest sample; what is smaller shares one bin


def block_weights(cells: int, *, seed: int) -> Float64s:
    """Weights of each cell in each other run, [REPLICATES, cells]; each row adds to `cells`.

    The same seed and number of cells give the same weights.
    """
    chance = np.random.default_rng([seed, cells])
    width = block_cells(cells)
    starts = chance.integers(0, cells, (REPLICATES, math.ceil(cells / width)))
    chosen = (starts[:, :, None] + np.arange(width)) % cells  # [replicates, blocks, width]
    chosen = chosen.reshape(REPLICATES, -1)[:, :cells]
    rows = np.arange(REPLICATES)[:, None] * cells
    counts = np.bincount((rows + chosen).ravel(), minlength=REPLICATES * cells)
    return counts.reshape(REPLICATES, cells).astype(np.float64)


def replicated_means(samples: Samples, weights: Float64s) -> Float64s:
    """Means of the other runs, [replicates]."""
    sums = np.bincount(samples.cell, weights=samples.values, minlength=samples.cells)
    counts = np.bincount(samples.cell, minlength=samples.cells)
    return np.asarray((weights @ sums) / (weights @ counts))


def replicated_percentiles(
    samples: Samples, weights: Float64s, percentiles: Sequence[float]
) -> Float64s:
    """Percentiles of the other runs, [percentiles, replicates]; samples are at least 0."""
    least = max(float(samples.values.max()) * SMALLEST, 1e-300)
    steps = np.log(np.maximum(samples.values, least) / least) / BIN_WIDTH  # [samples]
    code = steps.astype(np.int64)
    code -= code.min()
    bins = int(code.max()) + 1
    in_bin = np.bincount(code, minlength=bins)
    sums = np.bincount(code, weights=samples.values, minlength=bins)
    values = sums[in_bin > 0] / in_bin[in_bin > 0]  # [occupied], rising
    counts = np.bincount(samples.cell * bins + code, minlength=samples.cells * bins)
    counts = counts.reshape(samples.cells, bins)[:, in_bin > 0]  # [cells, occupied]
    reached = np.cumsum(weights @ counts.astype(np.float64), axis=1)  # [replicates, occupied]
    return np.stack(
        [
            # The first bin that this share of the samples does not go beyond.
            values[(reached < percentile / 100 * reached[:, -1:]).sum(axis=1)]
            for percentile in percentiles
        ]
    )


Key = tuple[str, str, str]
"""Traffic class (empty: all together), figure, statistic (empty: a figure with one value)."""

COMPARED: Final = (50.0, 90.0, 99.0)

BEYOND_MIN: Final = 10
"""Samples beyond a percentile needed to see its noise."""


OF_THE_RATE: Final = ("tokens_per_s_per_chip", "output_tokens_per_s_per_provisioned_mw")
"""Figures that are output tokens/s divided by a constant."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicatedFigure:
    """`value` is the run's; `replicas`, [REPLICATES], are bootstrapped, None where one run cannot
    give them. `factor` corrects their variance, which has `freedom` degrees.
    """

    value: float
    replicas: Float64s | None = None
    factor: float = 1.0
    freedom: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFigures:
    """A run, its measures, and all figures to compare."""

    record: RunRecord
    measures: RunMeasures
    figures: Mapping[Key, ReplicatedFigure]

    @classmethod
    def of(cls, record: RunRecord, *, seed: int | None) -> "RunFigures":
        """Compute them; `seed` draws the replicas, None leaves them out."""
        total, classes = measured_classes(record)
        measures = measures_of(record, total, classes)
        figures: dict[Key, ReplicatedFigure] = {}
        parts = [("", total, measures.total)]
        if len(classes) > 1:
            parts += [(each.name, each, measures.classes[each.name]) for each in classes]
        for name, measured, found in parts:
            figures |= _latencies(name, measured, found, seed)
            figures |= _rates(name, measured, found, seed)
        figures |= _server_figures(measures, figures.get(("", "output_tokens_per_s", "")))
        return cls(record=record, measures=measures, figures=figures)


def _server_figures(
    measures: RunMeasures, rate: ReplicatedFigure | None
) -> Mapping[Key, ReplicatedFigure]:
    """Figures of definitions.ENERGY; one run gives no replicas of a meter."""
    values = {name: each for name, each in asdict(measures.energy).items() if name != "metered_s"}
    figures = {
        ("", name, ""): ReplicatedFigure(value=value)
        for name, value in values.items()
        if value is not None
    }
    if rate is not None and rate.replicas is not None and rate.value > 0:
        for name in OF_THE_RATE:
            key = ("", name, "")
            if key in figures:
                scale = figures[key].value / rate.value
                figures[key] = replace(
                    rate, value=figures[key].value, replicas=scale * rate.replicas
                )
    return figures


def _latencies(
    name: str, measured: MeasuredClass, found: ClassMeasures, seed: int | None
) -> Mapping[Key, ReplicatedFigure]:
    """Mean and percentiles of each distribution."""
    samples = {} if seed is None else measured.samples
    figures: dict[Key, ReplicatedFigure] = {}
    for figure, distribution in found.distributions.items():
        values = {"mean": distribution.mean.value}
        values |= {f"p{each:g}": distribution.percentiles[each].value for each in COMPARED}
        replicas: dict[str, Float64s] = {}
        of = samples.get(figure)
        if of is not None and len(of) >= BEYOND_MIN:
            assert seed is not None
            replicas = _replicas(of, block_weights(of.cells, seed=seed))
        for statistic, value in values.items():
            figures[name, figure, statistic] = _figure(
                value, replicas.get(statistic), 1 if of is None else of.cells
            )
    return figures


def _replicas(samples: Samples, weights: Float64s) -> dict[str, Float64s]:
    """By statistic, [replicates]; without percentiles that too few samples exceed."""
    known = [each for each in COMPARED if len(samples) * min(each, 100 - each) / 100 >= BEYOND_MIN]
    replicas = {"mean": replicated_means(samples, weights)}
    if known:
        found = replicated_percentiles(samples, weights, known)
        replicas |= {f"p{each:g}": row for each, row in zip(known, found, strict=True)}
    return replicas


def _rates(
    name: str, measured: MeasuredClass, found: ClassMeasures, seed: int | None
) -> Mapping[Key, ReplicatedFigure]:
    """Figures with one value."""
    replicas: dict[str, tuple[Float64s, int]] = {}
    judgement = measured.judgement
    if seed is not None:
        weights = block_weights(CELLS, seed=seed)
        for figure, cells in measured.amounts.items():
            value = found.rates[figure].value
            # As many cells as the run has, of the same length: the window stays as it is.
            share = weights @ cells / cells.sum() if cells.sum() else np.zeros(len(weights))
            replicas[figure] = (value * share, CELLS)
        answered = measured.measured & ~measured.columns.aborted
        shares = {"failed_share": ~measured.columns.done[answered]}
        if judgement is not None:
            shares["attainment"] = judgement.good[answered]
        for figure, held in shares.items():
            if held.size >= BEYOND_MIN:
                of = Samples.in_order(held.astype(np.float64))
                replicas[figure] = (
                    replicated_means(of, block_weights(of.cells, seed=seed)),
                    of.cells,
                )
    return {
        (name, figure, ""): _figure(estimate.value, *replicas.get(figure, (None, 1)))
        for figure, estimate in found.rates.items()
    }


def _figure(value: float, replicas: Float64s | None, cells: int) -> ReplicatedFigure:
    if replicas is None or cells < 2:
        return ReplicatedFigure(value=value)
    return ReplicatedFigure(
        value=value, replicas=replicas, factor=variance_factor(cells), freedom=block_freedom(cells)
    )
