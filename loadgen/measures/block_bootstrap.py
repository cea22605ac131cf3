"""The moving block bootstrap: a figure's spread over other runs like this one.

Time is cut into cells; another run is made of blocks of neighbouring cells, drawn with replacement
(Künsch 1989; wrapped around the end, Politis and Romano 1992). Block length and assumptions (a
steady load, dependence shorter than a block) are those of `loadgen.measures.intervals`.

Cells are weighted, not copied, so that a figure of all other runs is one matrix product.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from loadgen.measures.intervals import block_cells
from loadgen.measures.samples import Samples
from loadgen.records.arrays import Float64s

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
