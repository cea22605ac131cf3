"""Pools of prefill and decode that could meet a target, by the steady state alone.

A unit has engines that compute prompts and engines that decode, on one machine; a plan has so many
equal units. Prompts hold up no decode there, so that both sides are chosen by their own limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import ceil
from typing import Final, TypeVar

from emulator.fabric.kv_transfer import prompt_transfer_ns
from emulator.units import NS_PER_S
from serving.analysis.plan.plan_options import Option, OptionTerms, parts_of
from serving.analysis.steady_state.pools import (
    DecodeOption,
    PrefillOption,
    Split,
    pooled_point,
    prefill_option,
)
from serving.analysis.steady_state.sweep import Task
from serving.simulator import THIS_PROCESS, SimulationWorkers

BUSY: Final = (0.9, 0.75, 0.6, 0.45, 0.3)
"""Shares of the time that prompts take of their engines: how long they wait, queues decide."""
ENGINES: Final = 6
"""Kinds of either pool that are paired: those that serve the most by the chip."""
UNITS_MAX: Final = 64
"""Of a plan."""
WITHIN: Final = 0.95
"""Of the time between tokens, for steps that have more than the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrefill(PrefillOption):
    """`long_ns`: of a long prompt that comes to an idle replica."""

    long_ns: float


Engine = TypeVar("Engine", LongPrefill, DecodeOption)


def pool_options(
    terms: OptionTerms, tasks: Sequence[Task], workers: SimulationWorkers = THIS_PROCESS
) -> tuple[Option, ...]:
    """Pairs of the best of `tasks`, each with several shares of prompts; none without a TPOT."""
    if terms.slo.tpot_s is None or terms.sweep.system.units > 1:
        return ()
    parts = parts_of(tasks, workers)
    engines = [*chain.from_iterable(workers.map(_engines_of, [(terms, part) for part in parts]))]
    prefills = _best([prefill for prefill, _ in engines if prefill is not None])
    decodes = _best([decode for _, decode in engines if decode is not None])
    pairs = [
        _paired(terms, prefill, decode, busy)
        for prefill in prefills
        for decode in decodes
        if prefill.precision == decode.precision
        for busy in BUSY
    ]
    return tuple(each for each in pairs if each is not None)


def _engines_of(
    given: tuple[OptionTerms, Sequence[Task]],
) -> list[tuple[LongPrefill | None, DecodeOption | None]]:
    terms, tasks = given
    return [(_prefill(terms, task), _decode(terms, task)) for task in tasks if terms.fits(task)]


def _best(engines: Sequence[Engine]) -> list[Engine]:
    """Those that serve the most by the chip, of each number of chips one."""
    best: dict[int, Engine] = {}
    for engine in engines:
        chips = engine.candidate.partition.chips
        if chips not in best or engine.requests_per_s > best[chips].requests_per_s:
            best[chips] = engine
    return sorted(best.values(), key=lambda each: -each.requests_per_s / _chips(each))[:ENGINES]


def _chips(engine: PrefillOption | DecodeOption) -> int:
    return engine.candidate.partition.chips


def _prefill(terms: OptionTerms, task: Task) -> LongPrefill | None:
    """None where a long prompt alone takes too long."""
    precision, candidate = task
    long_ns = terms.of_long_prompts().replica(precision, candidate).prompt_ns
    if terms.slo.ttft_s is not None and long_ns > terms.slo.ttft_s * NS_PER_S:
        return None
    found = prefill_option(precision, terms.sweep.replica(precision, candidate))
    return LongPrefill(
        **{each.name: getattr(found, each.name) for each in fields(found)}, long_ns=long_ns
    )


def _decode(terms: OptionTerms, task: Task) -> DecodeOption | None:
    """The largest batch within the time between tokens; None where one request takes longer."""
    precision, candidate = task
    replica = terms.sweep.replica(precision, candidate)
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
        precision=precision,
        candidate=candidate,
        batch=low,
        step=replica.decode(low),
        output_tokens=terms.sweep.shape.output_tokens,
    )


def _paired(
    terms: OptionTerms, prefill: LongPrefill, decode: DecodeOption, busy: float
) -> Option | None:
    """Units for the whole load, each of whole engines on one machine; None where none has room."""
    chips = terms.sweep.system.chips.count
    per_prefill = prefill.candidate.partition.chips
    per_decode = decode.candidate.partition.chips
    kv_ns = prompt_transfer_ns(
        terms.sweep.system,
        terms.sweep.model,
        prompt_tokens=terms.long_prompt,
        from_chips=prefill.candidate.partition.tp,
        to_chips=decode.candidate.partition.tp,
    )
    for units in range(1, UNITS_MAX + 1):
        rate_per_s = terms.rate_per_s / units
        prefills = ceil(rate_per_s / (busy * prefill.requests_per_s))
        decodes = ceil(rate_per_s / decode.requests_per_s)
        if prefills * per_prefill + decodes * per_decode <= chips:
            break
    else:
        return None
    split = Split(
        prefill=prefill,
        prefill_replicas=prefills,
        decode_replicas=decodes,
        requests_per_s=min(prefills * prefill.requests_per_s, decodes * decode.requests_per_s),
    )
    point = pooled_point(terms.sweep, decode, split, kv_ns)
    long_ns = prefill.long_ns + kv_ns
    return Option(
        point=point,
        meets=terms.slo.ttft_s is None or long_ns <= terms.slo.ttft_s * NS_PER_S,
        alone_ns=point.tpot_ns,
        prompt_ns=long_ns,
        requests_per_s=split.requests_per_s,
        replicas=units,
        most_requests_per_s=split.requests_per_s,
        steady=((split.requests_per_s, point.tpot_ns),),
    )
