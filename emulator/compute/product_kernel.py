"""Products of few rows with matrices in memory, compiled; a row's bits depend on nothing else.

Each number of a product is one sum, by the inner index from first to last. (A BLAS picks its order
by the whole product's shape.) Weights are read once for every four rows.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float32s
from emulator.compiled import allocating, compiled, inlined
from emulator.compute.vectors import LANES, TILES, RowsAt, add_row_of_four, address, copy_numbers

COPIED_COLUMNS_MIN: Final = 512
COPIED_ROWS_MIN: Final = 12
"""Rows of a matrix that are 2 KB apart or more fall into few lines of a core's first cache: for so
many rows of x, columns are copied before they are read for every four (DECISIONS.md)."""

_BYTES: Final = 4  # of a number
_ROWS: Final = 4
_ROW, _TWO_ROWS, _THREE_ROWS, _FOUR_ROWS = (TILES[rows, 2] for rows in range(1, 5))
_ROW_END, _TWO_ROWS_END, _THREE_ROWS_END, _FOUR_ROWS_END = (TILES[rows, 0] for rows in range(1, 5))


@compiled
def add_product(out: RowsAt, x: RowsAt, rows: int, w: int, inner: int, columns: int) -> None:
    """Add x [rows, inner] times w [inner, columns] to `out` [rows, columns].

    `w` is an address: its rows are one after the other.
    """
    add_columns(out, x, rows, RowsAt(w, columns), inner, columns)


@inlined
def add_columns(out: RowsAt, x: RowsAt, rows: int, w: RowsAt, inner: int, columns: int) -> None:
    """`add_product` of some columns of a matrix."""
    column = 0
    while rows == 1 and columns - column >= 4 * LANES:
        add_row_of_four(_moved(out, column), x, _moved(w, column), inner, 4 * LANES)
        column += 4 * LANES
    while column < columns:
        width = min(2 * LANES, columns - column)
        if width < 2 * LANES:
            width = min(LANES, width)
        for row in range(0, rows, _ROWS):
            to, by = _moved(out, row * out.step + column), _moved(x, row * x.step)
            _add_tile(to, by, min(_ROWS, rows - row), _moved(w, column), inner, width)
        column += width


@inlined
def _moved(rows: RowsAt, numbers: int) -> RowsAt:
    return RowsAt(rows.at + _BYTES * numbers, rows.step)


@inlined
def _add_tile(out: RowsAt, x: RowsAt, rows: int, w: RowsAt, inner: int, width: int) -> None:
    """`add_columns` of at most four rows, and of two vectors of columns or at most one."""
    if width == 2 * LANES:
        if rows == 4:
            _FOUR_ROWS(out, x, w, inner, width)
        elif rows == 3:
            _THREE_ROWS(out, x, w, inner, width)
        elif rows == 2:
            _TWO_ROWS(out, x, w, inner, width)
        else:
            _ROW(out, x, w, inner, width)
    elif rows == 4:
        _FOUR_ROWS_END(out, x, w, inner, width)
    elif rows == 3:
        _THREE_ROWS_END(out, x, w, inner, width)
    elif rows == 2:
        _TWO_ROWS_END(out, x, w, inner, width)
    else:
        _ROW_END(out, x, w, inner, width)


@compiled
def _add_by_copies(out: RowsAt, x: RowsAt, rows: int, w: int, copy: Float32s, inner: int) -> None:
    """`add_product` to whole rows by a `copy` [inner * 2 * LANES] of some columns of `w` at a
    time.
    """
    for column in range(0, out.step, 2 * LANES):
        width = min(2 * LANES, out.step - column)
        for row in range(inner):
            source = w + _BYTES * (row * out.step + column)
            copy_numbers(address(copy, row * width), source, width)
        to = _moved(out, column)
        add_columns(to, x, rows, RowsAt(address(copy, 0), width), inner, width)


PANEL: Final = 2 * LANES


def panels_of(weights: Float32s) -> Float32s:
    """`weights` [inner, columns] as `multiply_panels` reads them: [panels, inner, PANEL]."""
    inner, columns = weights.shape
    panels = np.zeros((-(-columns // PANEL), inner, PANEL), np.float32)
    for panel in range(len(panels)):
        own = weights[:, panel * PANEL : (panel + 1) * PANEL]
        panels[panel, :, : own.shape[1]] = own
    return panels


@allocating
def multiply_panels(x: Float32s, panels: Float32s, columns: int) -> Float32s:
    """Multiply `x` [rows, inner] by a matrix of so many columns in `panels_of`: [rows, columns].

    Of a wide matrix a row is in other pages than the next, and a panel in as few as can be.
    """
    rows, inner = x.shape
    out = np.zeros((rows, columns), np.float32)
    for panel in range(len(panels)):
        first = panel * PANEL
        to, by = RowsAt(address(out, first), columns), RowsAt(address(x, 0), inner)
        own = RowsAt(address(panels, panel * inner * PANEL), PANEL)
        add_columns(to, by, rows, own, inner, min(PANEL, columns - first))
    return out


@allocating
def multiply_groups(
    x: Float32s, rows: int, row_step: int, group_step: int, weights: Float32s
) -> Float32s:
    """Multiply rows of each group by its own matrix of `weights` [groups, inner, columns].

    Returns [groups, rows, columns].

    In `x` [numbers] a row is `row_step` numbers from the next, a group `group_step`; with 0 all
    groups have the same rows.
    """
    groups, inner, columns = weights.shape
    out = np.zeros((groups, rows, columns), np.float32)
    copies = columns >= COPIED_COLUMNS_MIN and rows >= COPIED_ROWS_MIN
    copy = np.empty(inner * 2 * LANES if copies else 0, np.float32)
    for group in range(groups):
        to = RowsAt(address(out, group * rows * columns), columns)
        by = RowsAt(address(x, group * group_step), row_step)
        own = address(weights, group * inner * columns)
        if copies:
            _add_by_copies(to, by, rows, own, copy, inner)
        else:
            add_product(to, by, rows, own, inner, columns)
    return out
