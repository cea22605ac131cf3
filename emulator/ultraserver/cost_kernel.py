"""A step's cost, compiled: whole, pass by pass, or beside that of the step before.

What Python calls is kept on disk; see `compiled`.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.compiled import compiled, inlined, kept, sources_of
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
from emulator.ultraserver.count_kernel import (
    Batch,
    CountTables,
    ExpertRoom,
    GivenExperts,
    RankBatch,
    RankCounts,
    StepCounts,
)
from emulator.ultraserver.pass_kernel import Passed
from emulator.ultraserver.power_kernel import Drawn, PowerTables, Rounded
from emulator.ultraserver.request_kernel import FIRST_SUM, SUM_COLUMNS, TOKENS, RequestSums
from emulator.ultraserver.terms_layout import FIELDS
from emulator.ultraserver.time_kernel import (
    HOST_COUNT,
    LAUNCH,
    LINK,
    TIMES,
    TimedExperts,
    TimeTables,
)
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
    row_ns: Float64s  # computing of each row, [ranks, rows]
    row_talk_ns: Float64s  # [ranks, rows]
    segment_ns: Float64s  # computing and communication, [segments, ranks]
    shared_ns: Float64s  # experts and exchanges, [domains]
    expert_work: Float64s  # [chips, columns of work]
    work: Float64s  # [chips, columns of work]
    energy: Float64s  # as `power_kernel.dynamic_energy` has it, [chips]
    row_weights: Float64s  # [rows]
    experts: ExpertRoom
    timed: TimedExperts
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
        row_ns=np.empty((ranks, rows)),
        row_talk_ns=np.empty((ranks, rows)),
        segment_ns=np.empty((segments, ranks)),
        shared_ns=np.empty(domains),
        expert_work=np.empty(of_work),
        work=np.empty(of_work),
        energy=np.empty(chips),
        row_weights=np.empty(rows),
        experts=count_kernel.expert_room(t.tables[0], t.given),
        timed=time_kernel.nothing_timed(len(t.given.column_of), domains),
        times=np.empty(TIMES),
        host=np.empty(HOST_COUNT),
        fields=np.empty(FIELDS),
    )


@inlined
def _share_differs(keeps: KeptStep) -> bool:
    """Whether experts and exchanges are others than before; tokens of ranks alone decide that."""
    tokens, before = keeps.now.of.tokens, keeps.before.tokens
    differs = False
    for rank in range(len(tokens)):
        differs |= tokens[rank] != before[rank]
    return bool(differs)


@compiled
def _cost_share(t: StepTables, keeps: KeptStep) -> None:
    """Times and work of experts and exchanges; and, from a run's first step on, `row_weights`.

    Loops copy, since a whole array's assignment takes longer to compile: its error is a sentence.
    """
    count_tables, time_tables, _ = t.tables
    tokens, before, counts = keeps.now.of.tokens, keeps.before.tokens, keeps.experts.counts
    count_kernel.fill_experts(count_tables, tokens, keeps.experts)
    time_kernel.fill_timed(time_tables, counts, t.slow, keeps.times, keeps.timed)
    time_kernel.fill_shared(time_tables, keeps.timed, keeps.shared_ns)
    work_kernel.fill_expert_work(time_tables, counts, keeps.fields, keeps.expert_work)
    work_kernel.row_weights(time_tables, time_tables.runs, keeps.row_weights)
    for rank in range(len(tokens)):
        before[rank] = tokens[rank]


@inlined
def _cost_rank(t: StepTables, keeps: KeptStep, logit_rows: Int64s, rank: int) -> bool:
    """Terms and times of a rank's rows that are others than before; returns whether any is."""
    count_tables, time_tables, _ = t.tables
    kinds = count_tables.ranks.kinds
    sums_of_rows = kinds.sums_of_rows
    sums, before, logits = keeps.now.of.sums, keeps.before.sums, logit_rows[rank]
    terms, times, row_ns, row_talk_ns = (
        keeps.now.terms,
        keeps.times,
        keeps.row_ns,
        keeps.row_talk_ns,
    )
    is_other = logits != keeps.logit_rows[rank] or sums[rank, TOKENS] != before[rank, TOKENS]
    if is_other:
        count_kernel.check_known(kinds, int(sums[rank, TOKENS]), logits)
    slow = time_kernel.rank_slow(t.slow, time_tables.tp, rank)
    differs, first = False, 0
    for row in range(row_ns.shape[1]):
        end = count_kernel.end_of_row(sums_of_rows, row, first)
        row_differs = is_other
        for each in range(first, end):
            column = FIRST_SUM + sums_of_rows[each, 1]
            row_differs |= sums[rank, column] != before[rank, column]
        if row_differs:
            differs = True
            count_kernel.row_terms(count_tables.ranks, sums, logits, rank, row, (first, end), terms)
            layers = (time_tables.layers[row], time_tables.expert_layers[row])
            row_ns[rank, row] = time_kernel.time_row(
                time_tables, terms, rank, row, slow, layers, times
            )
            row_talk_ns[rank, row] = times[LINK] + times[LAUNCH]
        first = end
    return differs


@inlined
def _add_rows(t: StepTables, keeps: KeptStep, rank: int) -> None:
    """Times of a rank's segments, from those of its rows, and what it does for the host."""
    time_tables = t.tables[1]
    weights, segment_ns = time_tables.times, keeps.segment_ns
    row_ns, row_talk_ns = keeps.row_ns, keeps.row_talk_ns
    segments, rows = weights.shape
    for segment in range(segments):
        compute_ns = talk_ns = 0.0
        for row in range(rows):
            compute_ns += weights[segment, row] * row_ns[rank, row]
            talk_ns += weights[segment, row] * row_talk_ns[rank, row]
        if segment == segments - 1:
            compute_ns += time_kernel.host_ns(time_tables, keeps.now, rank, keeps.host)
        segment_ns[segment, rank] = compute_ns + talk_ns


@inlined
def _keep(keeps: KeptStep, logits: int, rank: int) -> None:
    """Note what a rank does, for the step after this."""
    now, before = keeps.now.of, keeps.before
    now_sums, before_sums = now.sums, before.sums
    for column in range(SUM_COLUMNS):
        before_sums[rank, column] = now_sums[rank, column]
    before.requests[rank], before.prefills[rank] = now.requests[rank], now.prefills[rank]
    keeps.logit_rows[rank] = logits


@inlined
def _draw_rank(t: StepTables, keeps: KeptStep, rank: int) -> None:
    """Work and energy of a rank's chips."""
    _, time_tables, power_tables = t.tables
    work, expert_work = keeps.work, keeps.expert_work
    chips = range(rank * time_tables.tp, (rank + 1) * time_tables.tp)
    for chip in chips:
        for column in range(WORK_COLUMNS):
            work[chip, column] = expert_work[chip, column]
    work_kernel.add_rank_work(
        time_tables, keeps.now.terms, keeps.row_weights, rank, keeps.fields, work
    )
    for chip in chips:
        keeps.energy[chip] = power_kernel.dynamic_energy(power_tables, work, chip)


@inlined
def drawn(t: StepTables, standing: Int64s, batch: RankBatch, keeps: KeptStep) -> Drawn:
    """`step` without its parts, after another of the same tables or none.

    Of `batch` and of requests that decode beside it, as `request_sums_beside`.
    """
    count_kernel.sum_requests_beside(t.tables[0], standing, batch, keeps.now.of)
    logit_rows = batch[3]
    _, time_tables, power_tables = t.tables
    now, before = keeps.now.of, keeps.before
    all_draw = _share_differs(keeps)
    if all_draw:
        _cost_share(t, keeps)
    for rank in range(len(logit_rows)):
        differs = _cost_rank(t, keeps, logit_rows, rank)
        host_differs = now.requests[rank] != before.requests[rank]
        host_differs |= now.prefills[rank] != before.prefills[rank]
        if differs or host_differs or all_draw:
            _add_rows(t, keeps, rank)
            _keep(keeps, logit_rows[rank], rank)
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
