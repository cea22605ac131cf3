"""Pools of prefill and decode that could meet a target, by the steady state alone.

A unit has engines that compute prompts and engines that decode, on one machine; a plan has so many
equal units. Prompts hold up no decode there, so that both sides are chosen by their own limit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil
from typing import Final

from emulator.fabric.kv_transfer import prompt_transfer_ns
from emulator.units import NS_PER_S
from serving.analysis.plan.plan_options import Option, OptionTerms, parts_of
from serving.analysis.steady_state.pools import (
    DecodeOption,
    Engine,
    PrefillOption,
    Split,
    pooled_point,
    prefill_option,
    strongest_of_each_size,
)
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.sweep import Task
from serving.simulator import THIS_PROCESS, SimulationWorkers

BUSY: Final = (0.9, 0.75, 0.6, 0.45, 0.3)
"""Shares of the time that prompts take of their engines: how long they wait, queues decide."""
ENGINES: Final = 6
"""Kinds of either pool that are paired: those that serve the most by the chip."""
UNITS_MAX: Final = 64
"""Of a plan."""
PARTS: Final = (0.25, 0.5, 0.75, 1.0)
"""Of the largest batch."""
WITHIN: Final = 0.95
"""Of the time between tokens, for steps that have more than the mean."""


def pool_options(
    terms: OptionTerms, tasks: Sequence[Task], workers: SimulationWorkers = THIS_PROCESS
) -> tuple[Option, ...]:
    """Pairs of the best of `tasks`, each with several shares of prompts; none without a TPOT."""
    if terms.slo.tpot_s is None or terms.sweep.system.units > 1:
        return ()
    parts = parts_of(tasks, workers)
    engines = [*chain.from_iterable(workers.map(engines_of, [(terms, part) for part in parts]))]
    prefills = _best([prefill for prefill, _, _ in engines if prefill is not None])
    decodes = _best([decode for _, decode, _ in engines if decode is not None])
    alone_ns = {(of.precision, of.candidate): alone for _, of, alone in engines if of is not None}
    pairs = [
        _paired(terms, prefill, decode, busy, alone_ns[decode.precision, decode.candidate])
        for prefill in prefills
        for decode in decodes
        if prefill.precision == decode.precision
        for busy in BUSY
    ]
    units = {(each.candidate, each.point.prefill): each for each in pairs if each is not None}
    return tuple(units.values())  # several shares of prompts may give the same engines


def engines_of(
    given: tuple[OptionTerms, Sequence[Task]],
) -> list[tuple[PrefillOption | None, DecodeOption | None, float]]:
    """What partitions do as either pool, and the time between a lone request's tokens."""
    terms, tasks = given
    replicas = (terms.sweep.replica(*task) for task in tasks if terms.fits(task))
    return [
        (prefill_of(terms, each), decode_of(terms, each), each.decode(1).duration_ns)
        for each in replicas
    ]


def _best(engines: Iterable[Engine]) -> list[Engine]:
    """Those that serve the most by the chip, of each number of chips one."""
    strongest = strongest_of_each_size(engines)
    strongest.sort(key=lambda each: -each.requests_per_s / each.candidate.partition.chips)
    return strongest[:ENGINES]


def prefill_of(terms: OptionTerms, replica: Replica) -> PrefillOption | None:
    """With the time of a long prompt; None where that alone takes too long."""
    long_ns = replica.prompt_ns_of(terms.long_prompt)
    if terms.slo.ttft_s is not None and long_ns > terms.slo.ttft_s * NS_PER_S:
        return None
    return replace(prefill_option(replica.precision, replica), prompt_ns=long_ns)


def decode_of(terms: OptionTerms, replica: Replica) -> DecodeOption | None:
    """The largest batch within the time between tokens; None where one request takes longer."""
    batches = [each for each in replica.batches(decode_only=True) if each <= terms.seats]
    assert terms.slo.tpot_s is not None
    limit_ns = WITHIN * terms.slo.tpot_s * NS_PER_S
    low, high = 0, max(batches, default=0)
    while high > low:  # the largest of all, with steps that grow with the batch
        middle = (low + high + 1) // 2
        if replica.decode(middle).duration_ns <= limit_ns:
            low = middle
        else:
            high = middle - 1
    if not low:
        return None
    return DecodeOption(
        precision=replica.precision,
        candidate=replica.candidate,
        batch=low,
        step=replica.decode(low),
        output_tokens=terms.sweep.shape.output_tokens,
    )


def kv_transfer_ns(terms: OptionTerms, prefill: PrefillOption, decode: DecodeOption) -> float:
    """Of a long prompt's KV, from one pool to the other."""
    return prompt_transfer_ns(
        terms.sweep.system,
        terms.sweep.model,
        prompt_tokens=terms.long_prompt,
        from_chips=prefill.candidate.partition.tp,
        to_chips=decode.candidate.partition.tp,
    )


def _paired(
    terms: OptionTerms,
    prefill: PrefillOption,
    decode: DecodeOption,
    busy: float,
    alone_ns: float,
) -> Option | None:
    """Units for the whole load, each of whole engines on one machine; None where none has room."""
    chips = terms.sweep.system.chips.count
    per_prefill = prefill.candidate.partition.chips
    per_decode = decode.candidate.partition.chips
    for units in range(1, UNITS_MAX + 1):
        rate_per_s = terms.rate_per_s / units
        prefills = ceil(rate_per_s / (busy * prefill.requests_per_s))
        decodes = ceil(rate_per_s / decode.requests_per_s)
        if prefills * per_prefill + decodes * per_decode <= chips:
            break
    else:
        return None
    return unit_of(terms, (prefill, prefills), (decode, decodes), units=units, alone_ns=alone_ns)


def unit_of(
    terms: OptionTerms,
    prefills: tuple[PrefillOption, int],
    decodes: tuple[DecodeOption, int],
    *,
    units: int,
    alone_ns: float,
) -> Option:
    """So many engines of both kinds for an equal part of the load.

    `alone_ns`: between a lone request's tokens.
    """
    (prefill, prefill_engines), (decode, decode_engines) = prefills, decodes
    split = Split(
        prefill=prefill,
        prefill_replicas=prefill_engines,
        decode_replicas=decode_engines,
        requests_per_s=min(
            prefill_engines * prefill.requests_per_s, decode_engines * decode.requests_per_s
        ),
    )
    point = pooled_point(terms.sweep, decode, split, kv_transfer_ns(terms, prefill, decode))
    return Option(
        point=point,
        meets=terms.slo.ttft_s is None or point.ttft_ns <= terms.slo.ttft_s * NS_PER_S,
        alone_ns=alone_ns,
        prompt_ns=point.ttft_ns,
        requests_per_s=split.requests_per_s,
        replicas=units,
        most_requests_per_s=split.requests_per_s,
        steady=tuple(_at_parts(split, decode, alone_ns)),
    )


def _at_parts(split: Split, decode: DecodeOption, alone_ns: float) -> Iterator[tuple[float, float]]:
    """Requests per second, and ns between tokens, which grow evenly with the batch."""
    for part in PARTS:
        users = split.decode_replicas * part * decode.users
        step_ns = alone_ns + part * (decode.step.duration_ns - alone_ns)
        requests_per_s = users / (decode.output_tokens * step_ns) * NS_PER_S
        yield min(requests_per_s, split.requests_per_s), step_ns
