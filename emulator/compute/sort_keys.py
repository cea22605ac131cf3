"""Sorting a row's values with one fixed order among equals: the lower column is the greater.

A partial sort leaves open which of two equal values comes first, and answers differently when
more columns are asked for. Here value and column are one 64-bit integer: no two keys of a row are
equal, so every way of sorting gives the same order. It agrees with argmax: the first of equals.
"""

import numpy as np
from numpy.typing import NDArray

_COLUMN_MASK = np.int64(0xFFFFFFFF)


def sort_keys(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return keys [rows, columns] that ascend with the values [rows, columns]."""
    # Adding zero turns -0.0 into 0.0. A negative float's bits ascend as it falls: flip them.
    bits = (values + np.float32(0.0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    columns = np.arange(values.shape[1], dtype=np.int64)
    return (ordered.astype(np.int64) << 32) | (_COLUMN_MASK - columns)


def key_columns(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns that the keys were made from; same shape."""
    return _COLUMN_MASK - (keys & _COLUMN_MASK)
