"""Copies per expert: the next copy goes to the heaviest load per copy, which this minimises.

Source: redundant experts of DeepSeek's EPLB; here a chip has at most one copy of an expert, and
ties go to fewer copies, so that a layer without load spreads its copies too.
"""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def replicate(load: F64, *, copies: int, most: int) -> I64:
    """Deal `copies` copies among load[rows, experts], 1 to `most` each: int64[rows, experts]."""
    rows, experts = load.shape
    assert experts <= copies <= experts * most, (experts, copies, most)
    count = np.ones((rows, experts), dtype=np.int64)
    # Below zero is an expert that may have no more copies.
    per_copy = load.copy() if most > 1 else np.full(load.shape, -1.0)
    row = np.arange(rows)
    for _ in range(copies - experts):
        heaviest = per_copy == per_copy.max(axis=1, keepdims=True)  # [rows, experts]
        chosen = np.where(heaviest, count, copies + 1).argmin(axis=1)  # [rows]
        count[row, chosen] += 1
        now = count[row, chosen]
        per_copy[row, chosen] = np.where(now < most, load[row, chosen] / now, -1.0)
    return count


def replicate_slowly(load: F64, *, copies: int, most: int) -> I64:
    """The same, one row and one copy at a time."""
    count = np.ones(load.shape, dtype=np.int64)
    for row, loads in enumerate(load):
        for _ in range(copies - len(loads)):
            open_experts = [e for e in range(len(loads)) if count[row, e] < most]
            chosen = min(open_experts, key=lambda e: (-loads[e] / count[row, e], count[row, e], e))
            count[row, chosen] += 1
    return count
