"""Costs of a matrix product beside its flops: partial tiles, few rows.

A product keeps tiles of weights still (contraction x outputs) and streams rows past each. An issue
lasts as long as its rows, and at least as `moving_rows_min`; a partial tile as long as a full one.
A contraction that leaves half or a quarter of a tile free shares the array, in sub-arrays, with
another such product.

Assumed: tiles are spread evenly over the cores, and the next tile is loaded while one is in use.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.matrix_engine import MatrixEngine

# Products that wait for the one before them, and so fill and drain the array once each.
ATTENTION_SEQUENCES: Final = 4  # projections of the hidden row; scores; values; output
LATENT_SEQUENCES: Final = 6  # downs; ups of queries; fold; scores; values; output
FEED_FORWARD_SEQUENCES: Final = 2  # gate and up together; down
ROUTER_SEQUENCES: Final = 1
LM_HEAD_SEQUENCES: Final = 1


def moving_rows(engine: MatrixEngine, rows: Float64s) -> Float64s:
    """Rows charged for an issue over `rows`: [...] -> [...]; 0 for 0."""
    return np.where(rows > 0, np.maximum(rows, engine.moving_rows_min.value), 0.0)


def contraction_rows(engine: MatrixEngine, contraction: Float64s, *, mx: bool = False) -> Float64s:
    """Contraction elements of the occupied tiles: [...] -> [...].

    Whole tiles, and for the rest the smallest half, quarter... of a tile that holds it.
    """
    tile = (engine.mx_tile_rows if mx else engine.tile_rows).value
    whole = np.floor(contraction / tile) * tile
    rest = contraction - whole
    taken = np.where(rest > 0, tile, 0.0)
    part = tile / 2
    while part * engine.sub_arrays.value >= tile:
        taken = np.where((rest > 0) & (rest <= part), part, taken)
        part /= 2
    rows: Float64s = whole + taken
    return rows


def output_columns(engine: MatrixEngine, outputs: Float64s) -> Float64s:
    """Output columns of the occupied whole tiles: [...] -> [...]."""
    tile = engine.tile_columns.value
    columns: Float64s = np.ceil(outputs / tile) * tile
    return columns


def tile_macs(
    engine: MatrixEngine, *, contraction: float, outputs: float, mx: bool = False
) -> float:
    """Multiply-accumulates charged per moving row of a product."""
    taken = contraction_rows(engine, np.array(contraction), mx=mx)
    return float(taken * output_columns(engine, np.array(outputs)))
