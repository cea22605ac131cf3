"""Times a counted step, compiled: its segments, experts and exchanges, and their parts.

The arithmetic is that of `step_time`, `step_rows`, `step_parts` and `step_work`, rank by rank and
in the order of their sums; times of a part are made once more for the few that a step waits for.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.compiled import allocating, compiled, inlined
from emulator.ultraserver.count_kernel import ExpertCounts, RankCounts, StepCounts
from emulator.ultraserver.terms_layout import (
    COLLECTIVES,
    CORE_NS,
    DMA_NS,
    DMA_START_NS,
    ENGINE_COUNT,
    FILL_DRAIN_NS,
    LATENCY_NS,
    LAUNCH_NS,
    LINK_NS,
    RAMP_NS,
    TENSOR_NS,
)

# What a row's time is made of: engines, then `OWN_OVERHEADS` in their order, then communication.
BUSIEST: Final = ENGINE_COUNT
OWN: Final = BUSIEST + 1
OWN_COUNT: Final = 7
LINK: Final = OWN + OWN_COUNT
LAUNCH: Final = LINK + 1
TIMES: Final = LAUNCH + 1
HOST_COUNT: Final = 4

# Parts of a step behind those of its rows, in the order of their names in `step_cost`.
EXPERTS_PART: Final = 0
OWN_PART: Final = 1
HOST_PART: Final = OWN_PART + OWN_COUNT
TP_PART: Final = HOST_PART + HOST_COUNT
COLLECTIVE_PART: Final = TP_PART + 1
EXCHANGE_PART: Final = TP_PART + 2
FURTHER_PARTS: Final = TP_PART + 5  # the last two, power limits and drafts, are filled elsewhere


class TimeTables(NamedTuple):
    """A calibration, and how rows make a step; see `StepTerms` for the arrays."""

    tensor_share: float
    memory_share: float
    link_share: float
    exchange_share: float
    exchange_ns: float
    collective_ns: float
    step_ns: float
    layer_ns: float
    expert_layer_ns: float
    request_ns: float
    prefill_step_ns: float
    turn_taking: float
    launch_ns: float
    layers: Float64s  # [rows]
    expert_layers: Float64s  # [rows]
    part_of_row: Int64s  # [rows]
    row_parts: int
    times: Float64s  # [segments, rows]
    runs: Float64s  # [segments]
    segment_of_layer: Int64s  # [MoE layers]
    kind_of_layer: Int64s  # [MoE layers]
    kind_runs: Float64s  # [kinds]
    dispatch_share: float
    tp: int
    ranks_per_domain: int


class TimedExperts(NamedTuple):
    """Experts and exchanges before any overlap."""

    expert_ns: Float64s  # [kinds, domains]
    slowest_chip: Int64s  # [kinds, domains]
    dispatch_ns: Float64s  # [kinds]
    combine_ns: Float64s  # [kinds]


class Timed(NamedTuple):
    """A counted step before any overlap: its segments, and what they share."""

    compute_ns: Float64s  # [segments, ranks]
    talk_ns: Float64s  # [segments, ranks]
    experts: TimedExperts


@compiled
def _together_ns(times: Float64s, turn_taking: float) -> float:
    """How long the engines take together; see `Calibration.turn_taking`."""
    longest = 0.0
    for engine in range(ENGINE_COUNT):
        longest = max(longest, times[engine])
    if turn_taking == 0 or longest == 0:
        return longest
    total = 0.0
    if turn_taking == 0.5:
        for engine in range(ENGINE_COUNT):
            total += (times[engine] / longest) * (times[engine] / longest)
        return float(longest * np.sqrt(total))
    for engine in range(ENGINE_COUNT):
        total += (times[engine] / longest) ** (1 / turn_taking)
    return float(longest * total**turn_taking)


@compiled
def time_row(
    tables: TimeTables,
    all_terms: Float64s,
    column: int,
    row: int,
    slow: float,
    layers: tuple[float, float],
    times: Float64s,
) -> float:
    """Fill `times` [TIMES] of one row of one column of [columns, rows, FIELDS]; -> its computing.

    `layers` are how many layers' and expert layers' overheads it has. Places are passed instead of
    slices, whose users would be counted.
    """
    for engine in range(ENGINE_COUNT):
        times[engine] = all_terms[column, row, engine]
    times[TENSOR_NS] /= tables.tensor_share
    times[DMA_NS] /= tables.memory_share
    busiest_ns = _together_ns(times, tables.turn_taking)
    ramped_ns = max(busiest_ns, times[TENSOR_NS] + all_terms[column, row, RAMP_NS])
    present = 1.0 if busiest_ns > 0 else 0.0
    times[BUSIEST] = slow * busiest_ns
    times[OWN] = slow * (ramped_ns - busiest_ns)
    times[OWN + 1] = slow * all_terms[column, row, CORE_NS]
    times[OWN + 2] = all_terms[column, row, FILL_DRAIN_NS]
    times[OWN + 3] = all_terms[column, row, DMA_START_NS]
    times[OWN + 4] = all_terms[column, row, LAUNCH_NS]
    times[OWN + 5] = tables.layer_ns * layers[0] * present
    times[OWN + 6] = tables.expert_layer_ns * layers[1] * present
    latency_ns = all_terms[column, row, LATENCY_NS]
    times[LINK] = all_terms[column, row, LINK_NS] / tables.link_share + latency_ns
    times[LAUNCH] = all_terms[column, row, COLLECTIVES] * tables.collective_ns
    own_ns = times[OWN]
    for overhead in range(OWN + 1, OWN + OWN_COUNT):
        own_ns += times[overhead]
    return float(times[BUSIEST] + own_ns)


@inlined
def host_ns(tables: TimeTables, counted: RankCounts, rank: int, host: Float64s) -> float:
    """Fill `host` [HOST_COUNT] of one rank; returns the sum."""
    busy = 1.0 if counted.of.tokens[rank] > 0 else 0.0
    host[0] = tables.step_ns * busy
    host[1] = tables.request_ns * counted.of.requests[rank]
    host[2] = tables.prefill_step_ns if counted.of.prefills[rank] > 0 else 0.0
    host[3] = tables.launch_ns * busy
    return float(host[0] + host[1] + host[2] + host[3])


@inlined
def rank_slow(slow: Float64s, tp: int, rank: int) -> float:
    """Of a rank's slowest chip."""
    slowest = slow[rank * tp]
    for chip in range(rank * tp, (rank + 1) * tp):
        slowest = max(slowest, slow[chip])
    return float(slowest)


@compiled
def time_rank(
    tables: TimeTables,
    counted: RankCounts,
    slow: Float64s,
    rank: int,
    room: tuple[Float64s, Float64s],
    compute_ns: Float64s,
    talk_ns: Float64s,
) -> None:
    """Fill one rank's of `compute_ns` and `talk_ns`, [segments, ranks].

    `room` is for [TIMES] and [HOST_COUNT] numbers.
    """
    weights, layers, expert_layers = tables.times, tables.layers, tables.expert_layers
    segments, rows = weights.shape
    times, host = room
    for segment in range(segments):
        compute_ns[segment, rank] = talk_ns[segment, rank] = 0.0
    own_slow = rank_slow(slow, tables.tp, rank)
    for row in range(rows):
        overheads = (layers[row], expert_layers[row])
        row_ns = time_row(tables, counted.terms, rank, row, own_slow, overheads, times)
        for segment in range(segments):
            compute_ns[segment, rank] += weights[segment, row] * row_ns
            talk_ns[segment, rank] += weights[segment, row] * (times[LINK] + times[LAUNCH])
    compute_ns[segments - 1, rank] += host_ns(tables, counted, rank, host)


@allocating
def _time_ranks(
    tables: TimeTables, counted: RankCounts, slow: Float64s
) -> tuple[Float64s, Float64s]:
    """Computing and communication of each rank's segments, [segments, ranks] both."""
    shape = (len(tables.times), len(counted.terms))
    compute_ns, talk_ns = np.empty(shape), np.empty(shape)
    room = (np.empty(TIMES), np.empty(HOST_COUNT))
    for rank in range(len(counted.terms)):
        time_rank(tables, counted, slow, rank, room, compute_ns, talk_ns)
    return compute_ns, talk_ns


def nothing_timed(kinds: int, domains: int) -> TimedExperts:
    """Room."""
    return TimedExperts(
        expert_ns=np.zeros((kinds, domains)),
        slowest_chip=np.zeros((kinds, domains), dtype=np.int64),
        dispatch_ns=np.zeros(kinds),
        combine_ns=np.zeros(kinds),
    )


_nothing_timed = allocating(nothing_timed)


@compiled
def fill_timed(
    tables: TimeTables,
    counted: ExpertCounts,
    slow: Float64s,
    times: Float64s,
    timed: TimedExperts,
) -> None:
    """Fill each domain's slowest chip, and the exchanges; `times` is room for [TIMES]."""
    kinds, chips = counted.column_of.shape
    column_of, counted_link_ns = counted.column_of, counted.link_ns
    expert_ns, slowest_chip = timed.expert_ns, timed.slowest_chip
    width = chips // expert_ns.shape[1]
    for kind in range(kinds):
        last_column, last_slow, own_ns, link_ns = -1, 0.0, 0.0, 0.0
        for chip in range(chips):
            column = column_of[kind, chip]
            if column != last_column or slow[chip] != last_slow:
                own_ns = time_row(tables, counted.terms, column, 0, slow[chip], (0.0, 0.0), times)
                last_column, last_slow = column, slow[chip]
            domain = chip // width
            if chip % width == 0 or own_ns > expert_ns[kind, domain]:
                expert_ns[kind, domain] = own_ns
                slowest_chip[kind, domain] = chip
            link_ns = max(link_ns, counted_link_ns[kind, chip])
        launch_ns = counted.collectives[kind] * tables.exchange_ns
        combine_ns = link_ns / tables.exchange_share + counted.rest_ns[kind] + launch_ns
        spared_ns = (1 - tables.dispatch_share) * link_ns
        timed.combine_ns[kind] = combine_ns
        timed.dispatch_ns[kind] = combine_ns - spared_ns / tables.exchange_share


@allocating
def time_experts(
    tables: TimeTables, counted: ExpertCounts, slow: Float64s, domains: int
) -> TimedExperts:
    """Each domain's slowest chip, and the exchanges, under a calibration."""
    timed = _nothing_timed(len(counted.column_of), domains)
    fill_timed(tables, counted, slow, np.empty(TIMES), timed)
    return timed


@allocating
def time_segments(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Timed:
    """A counted step under a calibration, on chips that are `slow` [chips] times as slow."""
    compute_ns, talk_ns = _time_ranks(tables, counted.ranks, slow)
    domains = len(counted.ranks.terms) // tables.ranks_per_domain
    experts = time_experts(tables, counted.experts, slow, domains)
    return Timed(compute_ns=compute_ns, talk_ns=talk_ns, experts=experts)


@compiled
def first_longest(times_ns: Float64s, first: int, count: int) -> int:
    """The first with the longest time of `count` from `first` on."""
    slowest = first
    for place in range(first, first + count):
        if times_ns[place] > times_ns[slowest]:
            slowest = place
    return slowest


@inlined
def longest_ns(tables: TimeTables, by_rank: Float64s, shared_ns: float, domain: int) -> float:
    """Segments [segments, ranks] of a domain's slowest ranks, and what it shares."""
    own_ns, width = 0.0, tables.ranks_per_domain
    for segment in range(len(by_rank)):
        slowest_ns = 0.0
        for rank in range(domain * width, (domain + 1) * width):
            slowest_ns = max(slowest_ns, by_rank[segment, rank])
        own_ns += tables.runs[segment] * slowest_ns
    return own_ns + shared_ns


@allocating
def longest_of_domains(tables: TimeTables, by_rank: Float64s, shared_ns: Float64s) -> Float64s:
    """`longest_ns` of each: [domains]."""
    total = np.empty(len(shared_ns))
    for domain in range(len(shared_ns)):
        total[domain] = longest_ns(tables, by_rank, shared_ns[domain], domain)
    return total


@allocating
def add_compute(
    tables: TimeTables,
    counted: RankCounts,
    slow: Float64s,
    segment_ns: Float64s,
    domain: int,
    runs: Float64s,
    parts: Float64s,
    engines: Float64s,
) -> None:
    """Add to `parts` what the slowest ranks of `domain` do in segments that run `runs` times.

    Collectives of ranks too; `engines` [parts of rows + 1, engines] gets each engine's time.
    """
    segments, rows = tables.times.shape
    width = tables.ranks_per_domain
    first, times, host = tables.row_parts, np.empty(TIMES), np.empty(HOST_COUNT)
    for segment in range(segments):
        rank = first_longest(segment_ns[segment], domain * width, width)
        own_slow = rank_slow(slow, tables.tp, rank)
        for row in range(rows):
            weight = runs[segment] * tables.times[segment, row]
            if weight == 0:
                continue
            layers = (tables.layers[row], tables.expert_layers[row])
            time_row(tables, counted.terms, rank, row, own_slow, layers, times)
            part = tables.part_of_row[row]
            parts[part] += weight * times[BUSIEST]
            for engine in range(ENGINE_COUNT):
                engines[part, engine] += weight * times[engine]
            for overhead in range(OWN_COUNT):
                parts[first + OWN_PART + overhead] += weight * times[OWN + overhead]
            parts[first + TP_PART] += weight * times[LINK]
            parts[first + COLLECTIVE_PART] += weight * times[LAUNCH]
    rank = first_longest(segment_ns[segments - 1], domain * width, width)
    host_ns(tables, counted, rank, host)
    for overhead in range(HOST_COUNT):
        parts[first + HOST_PART + overhead] += host[overhead] * runs[segments - 1]


@allocating
def add_experts(
    tables: TimeTables,
    counted: ExpertCounts,
    slow: Float64s,
    timed: TimedExperts,
    domain: int,
    parts: Float64s,
    engines: Float64s,
) -> None:
    """Add to `parts` the experts of the slowest chips of `domain`, over all layers."""
    first, times = tables.row_parts, np.empty(TIMES)
    for kind in range(len(tables.kind_runs)):
        weight, chip = tables.kind_runs[kind], timed.slowest_chip[kind, domain]
        column = counted.column_of[kind, chip]
        time_row(tables, counted.terms, column, 0, slow[chip], (0.0, 0.0), times)
        parts[first + EXPERTS_PART] += weight * times[BUSIEST]
        for engine in range(ENGINE_COUNT):
            engines[tables.row_parts, engine] += weight * times[engine]
        for overhead in range(OWN_COUNT):
            parts[first + OWN_PART + overhead] += weight * times[OWN + overhead]


@allocating
def bound_of(engines: Float64s) -> Int64s:
    """The engine with the longest time of each part: [parts, engines] -> [parts], -1 for none."""
    bound = np.empty(len(engines), dtype=np.int64)
    for part in range(len(engines)):
        bound[part], longest_ns = -1, 0.0
        for engine in range(ENGINE_COUNT):
            if engines[part, engine] > longest_ns:
                longest_ns = engines[part, engine]
                bound[part] = engine
    return bound


@compiled
def fill_shared(tables: TimeTables, timed: TimedExperts, total_ns: Float64s) -> None:
    """Fill what all ranks of a domain wait for, one thing after the other: [domains]."""
    kind_runs, expert_ns = tables.kind_runs, timed.expert_ns
    total_ns[:] = 0.0
    for kind in range(len(kind_runs)):
        both_ns = timed.dispatch_ns[kind] + timed.combine_ns[kind]
        for domain in range(len(total_ns)):
            total_ns[domain] += kind_runs[kind] * (expert_ns[kind, domain] + both_ns)


@allocating
def shared_ns(tables: TimeTables, timed: TimedExperts) -> Float64s:
    """`fill_shared`."""
    total_ns = np.empty(timed.expert_ns.shape[1])
    fill_shared(tables, timed, total_ns)
    return total_ns


@compiled
def add_exchanges(
    tables: TimeTables, counted: ExpertCounts, timed: TimedExperts, parts: Float64s
) -> None:
    """Add dispatches and combines of all layers, and their launches, to `parts`."""
    first = tables.row_parts
    for kind in range(len(tables.kind_runs)):
        launch_ns = 2 * counted.collectives[kind] * tables.exchange_ns
        both_ns = timed.dispatch_ns[kind] + timed.combine_ns[kind]
        parts[first + EXCHANGE_PART] += tables.kind_runs[kind] * (both_ns - launch_ns)
        parts[first + COLLECTIVE_PART] += tables.kind_runs[kind] * launch_ns
