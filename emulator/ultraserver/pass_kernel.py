"""A pass through the model, compiled: duration, its parts, and the work of each chip."""

from typing import NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.compiled import allocating
from emulator.ultraserver.count_kernel import StepCounts
from emulator.ultraserver.terms_layout import ENGINE_COUNT
from emulator.ultraserver.time_kernel import (
    FURTHER_PARTS,
    TimeTables,
    add_compute,
    add_exchanges,
    add_experts,
    bound_of,
    first_longest,
    longest_of_domains,
    shared_ns,
    time_segments,
)
from emulator.ultraserver.work_kernel import add_work, expert_work


class Passed(NamedTuple):
    """A pass through the model: see `StepTime` and `StepWork`. `bound` is -1 for no engine."""

    duration_ns: float
    rank_ns: Float64s  # [ranks]
    parts_ns: Float64s  # [parts of rows + FURTHER_PARTS]
    bound: Int64s  # [parts of rows + 1], the last of the experts
    work: Float64s  # [chips, WORK_COLUMNS], as `work_kernel` has them


@allocating
def time_alone(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Passed:
    """One thing after the other: every exchange and collective is exposed."""
    timed = time_segments(tables, counted, slow)
    segments, ranks = timed.compute_ns.shape
    segment_ns = timed.compute_ns + timed.talk_ns
    domain_shared_ns = shared_ns(tables, timed.experts)
    domain_ns = longest_of_domains(tables, segment_ns, domain_shared_ns)
    rank_ns = np.zeros(ranks)
    for rank in range(ranks):
        for segment in range(segments):
            rank_ns[rank] += tables.runs[segment] * segment_ns[segment, rank]
        rank_ns[rank] += domain_shared_ns[rank // tables.ranks_per_domain]
    domain = first_longest(domain_ns, 0, len(domain_ns))
    parts = np.zeros(tables.row_parts + FURTHER_PARTS)
    engines = np.zeros((tables.row_parts + 1, ENGINE_COUNT))
    add_compute(tables, counted.ranks, slow, segment_ns, domain, tables.runs, parts, engines)
    add_experts(tables, counted.experts, slow, timed.experts, domain, parts, engines)
    add_exchanges(tables, counted.experts, timed.experts, parts)
    work = expert_work(tables, counted.experts)
    add_work(tables, counted.ranks, tables.runs, work)
    return Passed(domain_ns[domain], rank_ns, parts, bound_of(engines), work)
