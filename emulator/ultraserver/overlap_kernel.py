"""Times a counted step whose exchanges hide behind computing, compiled; see `step_time`."""

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.compiled import allocating
from emulator.ultraserver.count_kernel import StepCounts
from emulator.ultraserver.pass_kernel import Passed
from emulator.ultraserver.terms_layout import ENGINE_COUNT
from emulator.ultraserver.time_kernel import (
    EXCHANGE_PART,
    FURTHER_PARTS,
    TP_PART,
    Timed,
    TimeTables,
    add_compute,
    add_exchanges,
    add_experts,
    bound_of,
    first_longest,
    longest_of_domains,
    time_segments,
)
from emulator.ultraserver.work_kernel import WORK_COLUMNS, add_work, expert_work


@allocating
def time_overlapped(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Passed:
    """The longer of all computing and all communication of each domain."""
    timed = time_segments(tables, counted, slow)
    segments, ranks = timed.compute_ns.shape
    domains = timed.experts.expert_ns.shape[1]
    experts_ns, exchanges_ns = np.zeros(domains), np.zeros(domains)
    for kind in range(len(tables.kind_runs)):
        both_ns = timed.experts.dispatch_ns[kind] + timed.experts.combine_ns[kind]
        for domain in range(domains):
            experts_ns[domain] += tables.kind_runs[kind] * timed.experts.expert_ns[kind, domain]
            exchanges_ns[domain] += tables.kind_runs[kind] * both_ns
    computing_ns = longest_of_domains(tables, timed.compute_ns, experts_ns)
    talking_ns = longest_of_domains(tables, timed.talk_ns, exchanges_ns)
    domain_ns = np.maximum(computing_ns, talking_ns)
    rank_ns = np.zeros(ranks)
    for rank in range(ranks):
        own_ns = talk_ns = 0.0
        for segment in range(segments):
            own_ns += tables.runs[segment] * timed.compute_ns[segment, rank]
            talk_ns += tables.runs[segment] * timed.talk_ns[segment, rank]
        domain = rank // tables.ranks_per_domain
        rank_ns[rank] = max(own_ns + experts_ns[domain], talk_ns + exchanges_ns[domain])
    domain = first_longest(domain_ns, 0, domains)
    parts, talking = (
        np.zeros(tables.row_parts + FURTHER_PARTS),
        np.zeros(tables.row_parts + FURTHER_PARTS),
    )
    engines = np.zeros((tables.row_parts + 1, ENGINE_COUNT))
    unused = np.zeros((tables.row_parts + 1, ENGINE_COUNT))
    add_compute(tables, counted.ranks, slow, timed.compute_ns, domain, tables.runs, parts, engines)
    add_experts(tables, counted.experts, slow, timed.experts, domain, parts, engines)
    add_compute(tables, counted.ranks, slow, timed.talk_ns, domain, tables.runs, talking, unused)
    add_exchanges(tables, counted.experts, timed.experts, talking)
    hidden_ns = min(computing_ns[domain], talking_ns[domain])
    shown = 1 - hidden_ns / talking_ns[domain] if talking_ns[domain] > 0 else 0.0
    for part in range(tables.row_parts + TP_PART, tables.row_parts + EXCHANGE_PART + 1):
        parts[part] = shown * talking[part]
    work = np.zeros((ranks * tables.tp, WORK_COLUMNS))
    add_work(tables, counted.ranks, tables.runs, work)
    work += expert_work(tables, counted.experts)
    return Passed(domain_ns[domain], rank_ns, parts, bound_of(engines), work)


@allocating
def _in_turns_ns(
    tables: TimeTables, halves: tuple[Timed, Timed], columns: Int64s, domain: int
) -> float:
    """All MoE layers of two half batches in turns, see `step_time.two_batch_ns`.

    `columns` [2, segments] are the ranks whose segments count, `domain` is theirs.
    """
    first, second = halves
    own_a, own_b = first.compute_ns + first.talk_ns, second.compute_ns + second.talk_ns
    total = between = 0.0
    layers = len(tables.kind_of_layer)
    for layer in range(layers):
        segment, kind = tables.segment_of_layer[layer], tables.kind_of_layer[layer]
        attending_a, attending_b = (
            own_a[segment, columns[0, segment]],
            own_b[segment, columns[1, segment]],
        )
        if layer == 0:
            between += attending_a
        else:
            last = tables.kind_of_layer[layer - 1]
            between += max(attending_a, second.experts.combine_ns[last])
        total += max(attending_b, first.experts.dispatch_ns[kind])
        total += max(first.experts.expert_ns[kind, domain], second.experts.dispatch_ns[kind])
        total += max(second.experts.expert_ns[kind, domain], first.experts.combine_ns[kind])
    return float(between + total + second.experts.combine_ns[tables.kind_of_layer[layers - 1]])


@allocating
def time_halves(
    tables: TimeTables,
    counted: StepCounts,
    halves: tuple[StepCounts, StepCounts],
    slow: Float64s,
) -> Passed:
    """Layers of both half batches in turns, then tail and host of the whole one."""
    timed = time_segments(tables, counted, slow)
    pair = (time_segments(tables, halves[0], slow), time_segments(tables, halves[1], slow))
    segments, ranks = timed.compute_ns.shape
    domains, tail_ns = timed.experts.expert_ns.shape[1], timed.compute_ns[-1] + timed.talk_ns[-1]
    width = tables.ranks_per_domain
    slowest, columns = np.zeros((2, segments), dtype=np.int64), np.zeros((2, segments), np.int64)
    domain_ns, rank_ns = np.empty(domains), np.empty(ranks)
    for domain in range(domains):
        for half in range(2):
            for segment in range(segments):
                own_ns = pair[half].compute_ns[segment] + pair[half].talk_ns[segment]
                slowest[half, segment] = first_longest(own_ns, domain * width, width)
        tail = tail_ns[first_longest(tail_ns, domain * width, width)]
        domain_ns[domain] = _in_turns_ns(tables, pair, slowest, domain) + tail
    for rank in range(ranks):
        columns[:] = rank
        in_turns_ns = _in_turns_ns(tables, pair, columns, rank // tables.ranks_per_domain)
        rank_ns[rank] = tail_ns[rank] + in_turns_ns
    domain = first_longest(domain_ns, 0, domains)
    tail_runs, layer_runs = np.zeros(segments), tables.runs.copy()
    tail_runs[-1], layer_runs[-1] = tables.runs[-1], 0.0
    parts = np.zeros(tables.row_parts + FURTHER_PARTS)
    engines = np.zeros((tables.row_parts + 1, ENGINE_COUNT))
    work = np.zeros((ranks * tables.tp, WORK_COLUMNS))
    add_compute(
        tables,
        counted.ranks,
        slow,
        timed.compute_ns + timed.talk_ns,
        domain,
        tail_runs,
        parts,
        engines,
    )
    add_work(tables, counted.ranks, tail_runs, work)
    for half in range(2):
        engines[:] = 0.0
        own = pair[half]
        own_ns = own.compute_ns + own.talk_ns
        add_compute(tables, halves[half].ranks, slow, own_ns, domain, layer_runs, parts, engines)
        add_experts(tables, halves[half].experts, slow, own.experts, domain, parts, engines)
        add_work(tables, halves[half].ranks, layer_runs, work)
        work += expert_work(tables, halves[half].experts)
    parts[tables.row_parts + EXCHANGE_PART] = domain_ns[domain] - parts.sum()
    return Passed(domain_ns[domain], rank_ns, parts, bound_of(engines), work)
