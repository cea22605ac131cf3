"""Pools of prefill and decode that could meet a target, by the steady state alone.

A unit has engines that compute prompts and engines that decode, on one machine; a plan has so many
equal units. Prompts hold up no decode there, so that both sides are chosen by their own limit.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import ceil
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float64s
from emulator.fabric.kv_transfer import prompt_transfer_ns
from emulator.units import NS_PER_S
from serving.analysis.plan.plan_options import NEAR, Option, OptionTerms, parts_of, size_ends
from serving.analysis.plan.prompt_sides import PromptSide
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.pools import (
    DecodeOption,
    Engine,
    PrefillOption,
    Split,
    pooled_point,
    prefill_option,
)
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.sweep import Task
from serving.simulator import THIS_PROCESS, SimulationWorkers

KINDS: Final = 2
"""Engines of equal chips and tp that are paired: those that serve the most."""
UNITS_MOST: Final = 2
"""Times the fewest units that have the chips, each NEAR times more than the one before."""
SAME_SIDE: Final = 3
"""Of so many units that race at a size one side is the same in one at most, or in two."""
MORE_PAIRS: Final = 16
"""Times the units that race, from which they are taken."""
DECODES_MORE: Final = (0, 1, 2, 3, 5, 8)
"""Engines that decode, above the fewest that take the load."""
ABOUT: Final = 0.05
"""Units that differ by less are as near to their limits."""
PARTS: Final = (0.25, 0.5, 0.75, 1.0)
"""Of the largest batch."""
WITHIN: Final = 0.95
"""Of the time between tokens, for steps that have more than the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPartition:
    """What a partition does alone, and as either pool; None where it cannot.

    `alone_ns`: between the tokens of a request that an engine decodes alone.
    """

    option: Option
    prefill: PrefillOption | None = None
    decode: DecodeOption | None = None
    alone_ns: float = 0.0

    @property
    def task(self) -> Task:
        """Which it is."""
        return self.option.point.precision, self.option.candidate


def partitions_of(
    terms: OptionTerms,
    tasks: Sequence[Task],
    workers: SimulationWorkers = THIS_PROCESS,
    *,
    pools: bool,
) -> list[PlanPartition]:
    """Those of `tasks` into which the longest request fits; with `pools` as these, too."""
    given = [(terms, part, pools) for part in parts_of(tasks, workers)]
    return [*chain.from_iterable(workers.map(_partitions_in, given))]


def _partitions_in(given: tuple[OptionTerms, Sequence[Task], bool]) -> list[PlanPartition]:
    terms, tasks, pools = given
    found = []
    for task in tasks:
        if terms.fits(task):
            replica = terms.sweep.replica(*task)
            each = PlanPartition(option=terms.option_of(replica))
            if pools and terms.slo.tpot_s is not None:
                each = replace(
                    each,
                    prefill=prefill_of(terms, replica),
                    decode=decode_of(terms, replica),
                    alone_ns=each.option.alone_ns,
                )
            found.append(each)
    return found


class PoolKinds:
    """Engines of both pools, of which units are made; `can_meet` if there are any of both: none
    without a limit between tokens, and on clusters of machines.
    """

    def __init__(self, terms: OptionTerms, partitions: Iterable[PlanPartition]) -> None:
        self._terms = terms
        able = [] if terms.slo.tpot_s is None or terms.sweep.system.units > 1 else [*partitions]
        self._prefills = strongest([each.prefill for each in able if each.prefill is not None])
        decodes = {each.decode: each.alone_ns for each in able if each.decode is not None}
        self._decodes = strongest([*decodes])
        self._alone_ns = [decodes[each] for each in self._decodes]
        self.can_meet = bool(self._prefills and self._decodes)

    @property
    def least_chips(self) -> int:
        """Fewer take no such load, however long requests may wait."""
        rate_per_s = self._terms.rate_per_s
        each = (
            min(ceil(rate_per_s / of.requests_per_s) * of.candidate.partition.chips for of in kinds)
            for kinds in (self._prefills, self._decodes)
        )
        return sum(each)

    def promising(
        self, above: int, most: int, count: int, late: Container[PromptSide] = ()
    ) -> list[tuple[float, Option]]:
        """Of more than `above` and up to `most` chips the `count` units that are the farthest from
        their limits, and how near: 1 is at one. Of each pair as many engines prefill as there is
        room for; the option's `replicas` are the units. None with a side for prompts that is known
        to be too `late`.
        """
        if not self.can_meet:
            return []
        machine, terms = self._terms.sweep.system.chips.count, self._terms
        same_side = max(2, count // SAME_SIDE)
        fewest = max(1, ceil(most / machine))
        found: dict[tuple[_Side, _Side], _Pair] = {}
        for units in size_ends(fewest, UNITS_MOST * fewest, ratio=NEAR):
            near = self._nearest(units, above, min(machine, most // units), MORE_PAIRS * count)
            # The most units of each kind.
            found |= {each.sides: each for each in near if self._prompt_side(each) not in late}
        return [
            (
                each.nearness,
                unit_of(
                    terms,
                    (self._prefills[each.prefill], each.prefill_engines),
                    (self._decodes[each.decode], each.decode_engines),
                    units=each.units,
                    alone_ns=self._alone_ns[each.decode],
                ),
            )
            for each in islice(_of_several_sides(sorted(found.values()), same_side), count)
        ]

    def with_fewer_to_decode(self, option: Option, units: int) -> list[Option]:
        """So many units of the same engines for prompts beside fewer chips that decode, from few to
        many: of each number of chips the engines that are the farthest from their limit.
        """
        prompts, replies = option.point.prefill, option.candidate
        if prompts is None:
            return []
        of = option.point.precision, prompts.partition
        likes = (e for e in self._prefills if (e.precision, e.candidate.partition) == of)
        if (prefill := next(likes, None)) is None:
            return []
        rate_per_s, decode = self._terms.rate_per_s / units, _engine_figures(self._decodes)
        is_beside = decode.precision == option.point.precision
        found: dict[int, tuple[float, int, int]] = {}
        for engines in range(1, replies.replicas * replies.partition.chips):
            each_per_s = np.full(len(self._decodes), rate_per_s / engines)
            tpot_ns = _tpot_ns(self._decodes, np.array(self._alone_ns), each_per_s)
            fits = is_beside & (each_per_s <= decode.requests_per_s)
            fits &= engines * decode.chips < replies.replicas * replies.partition.chips
            for at in np.flatnonzero(fits).tolist():
                chips = engines * int(decode.chips[at])
                each = float(tpot_ns[at]), engines, at
                found[chips] = min(found.get(chips, each), each)
        return [
            unit_of(
                self._terms,
                (prefill, prompts.replicas),
                (self._decodes[at], engines),
                units=units,
                alone_ns=self._alone_ns[at],
            )
            for _, (_, engines, at) in sorted(found.items())
        ]

    def _prompt_side(self, pair: "_Pair") -> PromptSide:
        prefill = self._prefills[pair.prefill]
        return prefill.precision, prefill.candidate.partition, pair.prefill_engines, pair.units

    def _nearest(self, units: int, above: int, room: int, count: int) -> "list[_Pair]":
        """Pairs with up to `room` chips a unit."""
        terms, rate_per_s = self._terms, self._terms.rate_per_s / units
        prefill, decode = _engine_figures(self._prefills), _engine_figures(self._decodes)
        fewest = np.ceil(rate_per_s / decode.requests_per_s)
        shape = (len(DECODES_MORE), len(self._prefills), len(self._decodes))
        decodes = np.broadcast_to((fewest + np.array(DECODES_MORE)[:, None])[:, None, :], shape)
        left = room - decodes * decode.chips
        prefills = np.floor(left / prefill.chips[:, None])
        chips = units * (decodes * decode.chips + prefills * prefill.chips[:, None])
        fits = (prefills >= 1) & (chips > above)
        fits &= prefill.precision[:, None] == decode.precision
        prefills = np.maximum(prefills, 1)
        ttft_ns = _ttft_ns(terms, self._prefills, rate_per_s / prefills)
        tpot_ns = _tpot_ns(self._decodes, np.array(self._alone_ns), rate_per_s / decodes)
        nearness = np.maximum(
            tpot_ns / _limit_ns(terms.slo.tpot_s), ttft_ns / _limit_ns(terms.slo.ttft_s)
        )
        nearness = np.where(fits, nearness, np.inf)
        about, engines = np.round(nearness / ABOUT) * ABOUT, units * (prefills + decodes)
        order = np.lexsort((engines.ravel(), about.ravel()))[:count]
        return [
            _Pair(
                about=float(about[at]),
                engines=int(engines[at]),
                units=units,
                nearness=float(nearness[at]),
                prefill=int(at[1]),
                decode=int(at[2]),
                prefill_engines=int(prefills[at]),
                decode_engines=int(decodes[at]),
            )
            for at in zip(*np.unravel_index(order, shape), strict=True)
            if np.isfinite(nearness[at])
        ]


class _Pair(NamedTuple):
    """So many engines of both kinds, by their places, in each of `units`.

    In the order in which they promise the most; of those about as near the fewest engines, which
    hold the most requests to share out.
    """

    about: float
    engines: int
    units: int
    nearness: float
    prefill: int
    decode: int
    prefill_engines: int
    decode_engines: int

    @property
    def sides(self) -> tuple["_Side", "_Side"]:
        """What a unit is, of whatever load."""
        return (self.prefill, self.prefill_engines), (self.decode, self.decode_engines)


_Side = tuple[int, int]
"""An engine's place, and how many of them."""


def _of_several_sides(pairs: Iterable[_Pair], most: int) -> Iterator[_Pair]:
    """Without those that have a side of `most` before them."""
    seen = Counter[tuple[str, _Side]]()
    for pair in pairs:
        sides = [*zip(("prefill", "decode"), pair.sides, strict=True)]
        if all(seen[side] < most for side in sides):
            seen.update(sides)
            yield pair


class _EngineFigures(NamedTuple):
    """Of engines: [engines] each."""

    chips: Float64s
    requests_per_s: Float64s
    precision: NDArray[np.str_]


def _engine_figures(engines: Sequence[PrefillOption] | Sequence[DecodeOption]) -> _EngineFigures:
    return _EngineFigures(
        chips=np.array([each.candidate.partition.chips for each in engines], dtype=float),
        requests_per_s=np.array([each.requests_per_s for each in engines]),
        precision=np.array([each.precision for each in engines]),
    )


def _limit_ns(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds * NS_PER_S


def _ttft_ns(
    terms: OptionTerms, prefills: Sequence[PrefillOption], requests_per_s: Float64s
) -> Float64s:
    """About the first token's time at the target's percentile, each engine with so many requests:
    [..., prefills, decodes].

    An engine's steps take in what came during the one before, and all ranks wait for the fullest:
    by about one prompt more than the mean, long ones more often. A request waits for a step and is
    in the next one, which lasts as long, or as its own prompt takes. Infinite where queues grow.
    """
    busy = requests_per_s / np.array([each.requests_per_s for each in prefills])[:, None]
    prompt_ns = np.array([each.step.duration_ns / each.prompts for each in prefills])[:, None]
    step_ns = prompt_ns * terms.fuller / np.maximum(1 - busy, 1e-9)
    waits = terms.slo.ttft_percentile / 100
    long_ns = np.array([each.prompt_ns for each in prefills])[:, None]
    return np.where(busy < 1, waits * step_ns + np.maximum(step_ns, long_ns), np.inf)


def _tpot_ns(
    decodes: Sequence[DecodeOption], alone_ns: Float64s, requests_per_s: Float64s
) -> Float64s:
    """Between tokens of an engine with so many requests: its steps grow evenly with the batch."""
    full_ns = np.array([each.step.duration_ns for each in decodes])
    users = np.array([each.users for each in decodes], dtype=float)
    output = np.array([each.output_tokens for each in decodes], dtype=float)
    growth = (full_ns - alone_ns) / users * requests_per_s * output / NS_PER_S
    return np.where(growth < 1, alone_ns / np.maximum(1 - growth, 1e-9), np.inf)


def strongest(engines: Sequence[Engine]) -> list[Engine]:
    """Of each precision, chips and tp those that serve the most; of equal ones the first."""
    found: list[Engine] = []
    seen: defaultdict[tuple[str, int, int], set[float]] = defaultdict(set)
    for each in sorted(engines, key=lambda each: -each.requests_per_s):
        partition = each.candidate.partition
        rates = seen[each.precision, partition.chips, partition.tp]
        if len(rates) < KINDS and each.requests_per_s not in rates:
            rates.add(each.requests_per_s)
            found.append(each)
    return found


def prefill_of(terms: OptionTerms, replica: Replica) -> PrefillOption | None:
    """With the time of a long prompt; None where that alone takes too long."""
    kept, of_kept = terms.as_kept(replica)
    long_ns = kept.prompt_ns(of_kept)
    if not terms.is_in_time(long_ns) and not terms.is_in_time(terms.prompt_ns(replica)):
        return None
    return replace(prefill_option(replica.precision, of_kept), prompt_ns=long_ns)


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


def pool_option(terms: OptionTerms, point: OperatingPoint) -> Option | None:
    """One unit of the engines of a curve's `point`, at the largest batch within the target; None
    where an idle one does not keep it, or without a TPOT.
    """
    assert point.prefill is not None
    tasks = [(point.precision, each) for each in (point.prefill, point.candidate)]
    if terms.slo.tpot_s is None or not all(terms.fits(task) for task in tasks):
        return None
    prompts, replies = (terms.sweep.replica(*task) for task in tasks)
    prefill, decode = prefill_of(terms, prompts), decode_of(terms, replies)
    if prefill is None or decode is None:
        return None
    return unit_of(
        terms,
        (prefill, point.prefill.replicas),
        (decode, point.candidate.replicas),
        units=1,
        alone_ns=replies.decode(1).duration_ns,
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
