"""What each chip does in a counted step, compiled: by engines, links, products and bytes."""

from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.compiled import allocating, compiled, inlined
from emulator.ultraserver.count_kernel import ExpertCounts, RankCounts
from emulator.ultraserver.terms_layout import (
    CORE_MOVING_NS,
    DMA_NS,
    ENGINE_COUNT,
    FIELDS,
    FLOPS,
    HBM_BYTES,
    LINK_BYTES,
    LINK_NS,
    RAMP_NS,
    RATES,
    TENSOR_NS,
)
from emulator.ultraserver.time_kernel import TimeTables

# Columns of a chip's work: the engines, then these.
WORK_LINK_NS: Final = ENGINE_COUNT
WORK_FLOPS: Final = WORK_LINK_NS + 1
WORK_HBM: Final = WORK_FLOPS + RATES
WORK_LINK_BYTES: Final = WORK_HBM + 1
WORK_DISPATCHED: Final = WORK_HBM + 2
WORK_COLUMNS: Final = WORK_HBM + 3


@compiled
def row_weights(tables: TimeTables, runs: Float64s, weights: Float64s) -> None:
    """Fill how often each row is computed, [rows], in segments that run `runs` times."""
    weights[:] = 0.0
    for row in range(len(weights)):
        for segment in range(len(runs)):
            weights[row] += runs[segment] * tables.times[segment, row]


@inlined
def add_rank_work(
    tables: TimeTables,
    terms: Float64s,
    weights: Float64s,
    rank: int,
    total: Float64s,
    work: Float64s,
) -> None:
    """Add to `work` [chips, WORK_COLUMNS] one rank's rows, [rows] times; `total` is for FIELDS."""
    total[:] = 0.0
    for row in range(len(weights)):
        for field in range(FIELDS):
            total[field] += weights[row] * terms[rank, row, field]
    for chip in range(rank * tables.tp, (rank + 1) * tables.tp):
        _add_fields(total, work, chip)


@allocating
def add_work(tables: TimeTables, counted: RankCounts, runs: Float64s, work: Float64s) -> None:
    """Add to `work` [chips, WORK_COLUMNS] segments that run `runs` times."""
    total, weights = np.empty(FIELDS), np.empty(tables.times.shape[1])
    row_weights(tables, runs, weights)
    for rank in range(len(counted.terms)):
        add_rank_work(tables, counted.terms, weights, rank, total, work)


@compiled
def fill_expert_work(
    tables: TimeTables, counted: ExpertCounts, total: Float64s, work: Float64s
) -> None:
    """Fill `work` [chips, WORK_COLUMNS]: experts of all layers, and their exchanges.

    `total` is room for FIELDS.
    """
    share, kind_runs = tables.dispatch_share, tables.kind_runs
    column_of, terms = counted.column_of, counted.terms
    counted_ns, counted_bytes = counted.link_ns, counted.link_bytes
    work[:] = 0.0
    for chip in range(len(work)):
        total[:] = 0.0
        link_ns = link_bytes = 0.0
        for kind in range(len(kind_runs)):
            weight, column = kind_runs[kind], column_of[kind, chip]
            for field in range(FIELDS):
                total[field] += weight * terms[column, 0, field]
            link_ns += weight * counted_ns[kind, chip]
            link_bytes += weight * counted_bytes[kind, chip]
        _add_fields(total, work, chip)
        work[chip, WORK_LINK_NS] += (1 + share) * link_ns
        work[chip, WORK_LINK_BYTES] += (1 + share) * link_bytes
        work[chip, WORK_DISPATCHED] += share * link_bytes


@allocating
def expert_work(tables: TimeTables, counted: ExpertCounts) -> Float64s:
    """`fill_expert_work`."""
    work = np.empty((counted.column_of.shape[1], WORK_COLUMNS))
    fill_expert_work(tables, counted, np.empty(FIELDS), work)
    return work


@inlined
def _add_fields(total: Float64s, work: Float64s, chip: int) -> None:
    """Add summed terms [FIELDS] to a chip's row of `work` [chips, WORK_COLUMNS]."""
    for engine in range(ENGINE_COUNT):
        work[chip, engine] += total[engine]
    work[chip, TENSOR_NS] += total[RAMP_NS]
    work[chip, DMA_NS] += total[CORE_MOVING_NS]
    work[chip, WORK_LINK_NS] += total[LINK_NS]
    for rate in range(RATES):
        work[chip, WORK_FLOPS + rate] += total[FLOPS + rate]
    work[chip, WORK_HBM] += total[HBM_BYTES]
    work[chip, WORK_LINK_BYTES] += total[LINK_BYTES]
