"""A step's cost, compiled: whole, pass by pass, or beside that of the step before.

What Python calls is kept on disk; see `compiled`.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.timing import core_attention
from emulator.ultraserver import (
    count_kernel,
    overlap_kernel,
    pass_kernel,
    power_kernel,
    request_kernel,
    step_time,
    terms_layout,
    time_kernel,
    work_kernel,
)
from emulator.ultraserver.compiled import allocating, compiled, kept, sources_of
from emulator.ultraserver.count_kernel import (
    Batch,
    CountTables,
    GivenExperts,
    RankCounts,
    StepCounts,
)
from emulator.ultraserver.pass_kernel import Passed
from emulator.ultraserver.power_kernel import Drawn, PowerTables, Rounded
from emulator.ultraserver.request_kernel import SUM_COLUMNS, RequestSums
from emulator.ultraserver.terms_layout import FIELDS
from emulator.ultraserver.time_kernel import HOST_COUNT, TIMES, TimeTables
from emulator.ultraserver.work_kernel import WORK_COLUMNS

SOURCES: Final = sources_of(
    core_attention,
    step_time,
    terms_layout,
    request_kernel,
    count_kernel,
    time_kernel,
    work_kernel,
    pass_kernel,
    overlap_kernel,
    power_kernel,
)


class StepTables(NamedTuple):
    """What `drawn` reads beside the batch and the step before."""

    tables: tuple[CountTables, TimeTables, PowerTables]
    given: GivenExperts
    slow: Float64s  # [chips]


class KeptStep(NamedTuple):
    """What a step leaves for the next one, most of whose ranks do the same, and room to cost it."""

    now: RankCounts
    before: RequestSums
    logit_rows: Int64s  # before, [ranks]
    compute_ns: Float64s  # [segments, ranks]
    talk_ns: Float64s  # [segments, ranks]
    segment_ns: Float64s  # both together
    shared_ns: Float64s  # experts and exchanges, [domains]
    expert_work: Float64s  # [chips, columns of work]
    work: Float64s  # [chips, columns of work]
    energy: Float64s  # as `power_kernel.dynamic_energy` has it, [chips]
    row_weights: Float64s  # [rows]
    times: Float64s
    host: Float64s
    fields: Float64s


def nothing_kept(t: StepTables) -> KeptStep:
    """Of no step."""
    time_tables = t.tables[1]
    (segments, rows), chips = time_tables.times.shape, len(t.slow)
    ranks = chips // time_tables.tp
    domains = ranks // time_tables.ranks_per_domain

    def sums() -> RequestSums:
        return RequestSums(np.full((ranks, SUM_COLUMNS), np.nan), *np.full((3, ranks), np.nan))

    of_work = (chips, WORK_COLUMNS)
    return KeptStep(
        now=RankCounts(np.empty((ranks, rows, FIELDS)), sums()),
        before=sums(),
        logit_rows=np.zeros(ranks, dtype=np.int64),
        compute_ns=np.empty((segments, ranks)),
        talk_ns=np.empty((segments, ranks)),
        segment_ns=np.empty((segments, ranks)),
        shared_ns=np.empty(domains),
        expert_work=np.empty(of_work),
        work=np.empty(of_work),
        energy=np.empty(chips),
        row_weights=np.empty(rows),
        times=np.empty(TIMES),
        host=np.empty(HOST_COUNT),
        fields=np.empty(FIELDS),
    )


@compiled
def _differs(keeps: KeptStep, logit_rows: Int64s, rank: int) -> bool:
    """Whether a rank does something else than before."""
    now, before = keeps.now.of, keeps.before
    differs = logit_rows[rank] != keeps.logit_rows[rank]
    differs |= now.requests[rank] != before.requests[rank]
    differs |= now.prefills[rank] != before.prefills[rank]
    for column in range(SUM_COLUMNS):
        differs |= now.sums[rank, column] != before.sums[rank, column]
    return bool(differs)


@compiled
def _share_differs(keeps: KeptStep) -> bool:
    """Whether experts and exchanges are others than before; tokens of ranks alone decide that."""
    tokens, before = keeps.now.of.tokens, keeps.before.tokens
    differs = False
    for rank in range(len(tokens)):
        differs |= tokens[rank] != before[rank]
    return bool(differs)


@allocating
def _cost_share(t: StepTables, keeps: KeptStep) -> None:
    """Times and work of experts and exchanges; and, from a run's first step on, `row_weights`."""
    count_tables, time_tables, _ = t.tables
    tokens = keeps.now.of.tokens
    counted = count_kernel.count_experts(count_tables, t.given, tokens)
    domains = len(keeps.shared_ns)
    timed = time_kernel.time_experts(time_tables, counted, t.slow, domains)
    keeps.shared_ns[:] = time_kernel.shared_ns(time_tables, timed)
    keeps.expert_work[:] = work_kernel.expert_work(time_tables, counted)
    work_kernel.row_weights(time_tables, time_tables.runs, keeps.row_weights)
    keeps.before.tokens[:] = tokens


@compiled
def _cost_rank(t: StepTables, keeps: KeptStep, logit_rows: Int64s, rank: int) -> None:
    """Terms and times of a rank's segments."""
    count_tables, time_tables, _ = t.tables
    now, before = keeps.now.of, keeps.before
    count_kernel.rank_terms(count_tables.ranks, now.sums, logit_rows, rank, keeps.now.terms)
    time_kernel.time_rank(
        time_tables,
        keeps.now,
        t.slow,
        rank,
        (keeps.times, keeps.host),
        keeps.compute_ns,
        keeps.talk_ns,
    )
    for segment in range(len(keeps.segment_ns)):
        own_ns = keeps.compute_ns[segment, rank] + keeps.talk_ns[segment, rank]
        keeps.segment_ns[segment, rank] = own_ns
    for column in range(SUM_COLUMNS):
        before.sums[rank, column] = now.sums[rank, column]
    before.requests[rank], before.prefills[rank] = now.requests[rank], now.prefills[rank]
    keeps.logit_rows[rank] = logit_rows[rank]


@compiled
def _draw_rank(t: StepTables, keeps: KeptStep, rank: int) -> None:
    """Work and energy of a rank's chips."""
    _, time_tables, power_tables = t.tables
    chips = range(rank * time_tables.tp, (rank + 1) * time_tables.tp)
    for chip in chips:
        for column in range(WORK_COLUMNS):
            keeps.work[chip, column] = keeps.expert_work[chip, column]
    work_kernel.add_rank_work(
        time_tables, keeps.now.terms, keeps.row_weights, rank, keeps.fields, keeps.work
    )
    for chip in chips:
        keeps.energy[chip] = power_kernel.dynamic_energy(power_tables, keeps.work, chip)


@compiled
def drawn(t: StepTables, batch: Batch, keeps: KeptStep) -> Drawn:
    """`step` without its parts, after another of the same tables or none."""
    count_kernel.sum_requests(t.tables[0], batch, keeps.now.of)
    return _drawn(t, batch[3], keeps)


@compiled
def drawn_beside(t: StepTables, standing: Int64s, batch: Batch, keeps: KeptStep) -> Drawn:
    """`drawn` of `batch` and of requests that decode beside it, as `request_sums_beside`."""
    count_kernel.sum_requests_beside(t.tables[0], standing, batch, keeps.now.of)
    return _drawn(t, batch[3], keeps)


@compiled
def _drawn(t: StepTables, logit_rows: Int64s, keeps: KeptStep) -> Drawn:
    """Of sums over requests that are there."""
    _, time_tables, power_tables = t.tables
    all_draw = _share_differs(keeps)
    if all_draw:
        _cost_share(t, keeps)
    for rank in range(len(logit_rows)):
        differs = _differs(keeps, logit_rows, rank)
        if differs:
            _cost_rank(t, keeps, logit_rows, rank)
        if differs or all_draw:
            _draw_rank(t, keeps, rank)
    duration_ns = 0.0
    for domain in range(len(keeps.shared_ns)):
        shared_ns = keeps.shared_ns[domain]
        domain_ns = time_kernel.longest_ns(time_tables, keeps.segment_ns, shared_ns, domain)
        duration_ns = max(duration_ns, domain_ns)
    return power_kernel.drawn(power_tables, duration_ns, keeps.energy)


@kept(SOURCES)
def step(
    tables: tuple[CountTables, TimeTables, PowerTables],
    given: GivenExperts,
    batch: Batch,
    slow: Float64s,
) -> tuple[Rounded, Float64s, Int64s]:
    """A step without overlap or drafts: rounded, with the parts and bounds of `Passed`."""
    counted = count_kernel.count(tables[0], given, batch)
    passed = pass_kernel.time_alone(tables[1], counted, slow)
    whole = power_kernel.rounded(tables[2], passed.duration_ns, passed.rank_ns, passed.work, slow)
    return whole, passed.parts_ns, passed.bound


@kept(SOURCES)
def count(tables: CountTables, given: GivenExperts, batch: Batch) -> StepCounts:
    """`count_kernel.count`."""
    return count_kernel.count(tables, given, batch)


@kept(SOURCES)
def time_alone(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Passed:
    """`pass_kernel.time_alone`."""
    return pass_kernel.time_alone(tables, counted, slow)


@kept(SOURCES)
def time_overlapped(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Passed:
    """`overlap_kernel.time_overlapped`."""
    return overlap_kernel.time_overlapped(tables, counted, slow)


@kept(SOURCES)
def time_halves(
    tables: TimeTables, counted: StepCounts, pair: tuple[StepCounts, StepCounts], slow: Float64s
) -> Passed:
    """`overlap_kernel.time_halves`."""
    return overlap_kernel.time_halves(tables, counted, pair, slow)


@kept(SOURCES)
def rounded(
    tables: PowerTables, duration_ns: float, rank_ns: Float64s, work: Float64s, slow: Float64s
) -> Rounded:
    """`power_kernel.rounded`."""
    return power_kernel.rounded(tables, duration_ns, rank_ns, work, slow)
