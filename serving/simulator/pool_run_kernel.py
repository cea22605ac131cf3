"""Engines behind a router that looks at them, compiled: steps until a request comes, which goes to
the engine with the fewest tokens, less those of its prompt that are cached if that counts.

What `LockstepSchedulers` and `routing.least_loaded` or `prefix_aware` do, request by request.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from typing import NamedTuple

from emulator.arrays import Bools, Int64s
from emulator.compiled import allocating, compiled
from serving.simulator.rank_queues import held_tokens, most_hit_tokens
from serving.simulator.scheduler_arrays import (
    NONE,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
)
from serving.simulator.step_run_kernel import step_on
from serving.simulator.step_run_record import (
    ARRIVAL,
    ENGINE,
    UNDER_WAY,
    WAITS,
    Coming,
    PoolComing,
    StepRules,
    StepRunRecord,
    Stops,
)


class RoutedPool(NamedTuple):
    """Engines, whose arrays but those of requests and keys have a first axis [engines].

    `by_prefixes`: what they have cached of a prompt counts when it is routed.
    """

    arrays: SchedulerArrays
    caches: PrefixCache | None
    by_prefixes: bool


@allocating
def _engine(pool: SchedulerArrays, number: int) -> SchedulerArrays:
    """One of the pool's."""
    return SchedulerArrays(
        pool.requests,
        pool.ranks[number],
        pool.rows[number],
        pool.running[number],
        pool.waiting_tokens[number],
        pool.waiting_requests[number],
    )


@allocating
def _cache(caches: PrefixCache | None, number: int) -> PrefixCache | None:
    """One engine's."""
    if caches is None:
        return None
    return PrefixCache(
        caches.block_keys,
        caches.blocks[number],
        caches.buckets[number],
        caches.free_seats[number],
        caches.table[number],
    )


@allocating
def _cached_tokens(pool: RoutedPool, bounds: SchedulerBounds, number: int, request: int) -> int:
    """Of a request's prompt, on that of the engine's ranks which has most of them."""
    cache = _cache(pool.caches, number)
    return most_hit_tokens(_engine(pool.arrays, number), bounds, cache, request)


@allocating
def _step(
    pool: RoutedPool,
    bounds: SchedulerBounds,
    rules: StepRules,
    own: PoolComing,
    judged: Bools,
    r: StepRunRecord,
    until_ns: int,
    number: int,
) -> int:
    """Let one engine make all steps that begin before `until_ns`; why it ends there."""
    count = own.routed[number]
    coming = Coming(own.request[number, :count], own.at_ns[number, :count])
    record = StepRunRecord(r.run[number : number + 1], r.steps[number], r.given, r.counts[number])
    stops = Stops(until_ns, len(r.steps[number]) - 1, False)
    engine, cache = _engine(pool.arrays, number), _cache(pool.caches, number)
    return step_on(engine, bounds, cache, rules, None, (coming, judged), record, stops)


@compiled
def _has_to_do(own: PoolComing, r: StepRunRecord, until_ns: int, number: int) -> bool:
    """Whether a step of the engine ends or begins by then."""
    if r.run[number].end_ns != NONE:
        return r.run[number].end_ns <= until_ns
    return r.run[number].requests > 0 or r.run[number].taken < own.routed[number]


@allocating
def _chosen(
    pool: RoutedPool, bounds: SchedulerBounds, own: PoolComing, r: StepRunRecord, request: int
) -> int:
    """The engine that holds the fewest tokens, computed or not, less those of the request that it
    has cached if they count; the first of several.
    """
    best = least = 0
    for number in range(len(r.run)):
        if own.load_tokens[number] == NONE:
            tokens = held_tokens(_engine(pool.arrays, number))
            for place in range(r.run[number].taken, own.routed[number]):
                tokens += pool.arrays.requests[own.request[number, place]].tokens
            own.load_tokens[number] = tokens
        left = own.load_tokens[number]
        if pool.by_prefixes:
            left -= _cached_tokens(pool, bounds, number, request)
        if number == 0 or left < least:
            best, least = number, left
    return best


@compiled
def _route(pool: RoutedPool, own: PoolComing, number: int, request: int, at_ns: int) -> None:
    """Send a request to an engine, which takes it when it can."""
    at = own.routed[number]
    own.request[number, at], own.at_ns[number, at] = request, at_ns
    own.routed[number] += 1
    own.load_tokens[number] += pool.arrays.requests[request].tokens


def run_pool(
    pool: RoutedPool,
    bounds: SchedulerBounds,
    rules: StepRules,
    requests: tuple[Coming, Bools],
    own: PoolComing,
    r: StepRunRecord,
    place: Int64s,
    until_ns: int,
) -> int:
    """Make all steps that begin before `until_ns`, and route what comes until then; returns WAITS,
    or why the engine at `place` has to be looked after before it goes on there.

    All but `requests`, of which each engine gets its `own`, have a first axis [engines].
    """
    coming, judged = requests
    while True:
        is_last = place[ARRIVAL] == len(coming.at_ns)
        before_ns = until_ns if is_last else coming.at_ns[place[ARRIVAL]]
        while place[ENGINE] < len(r.run):
            number = place[ENGINE]
            if _has_to_do(own, r, before_ns, number):
                own.load_tokens[number] = NONE
                code = _step(pool, bounds, rules, own, judged, r, before_ns, number)
                if code not in (WAITS, UNDER_WAY):
                    return code
            place[ENGINE] += 1
        if is_last:
            return WAITS
        request = coming.request[place[ARRIVAL]]
        number = _chosen(pool, bounds, own, r, request)
        _route(pool, own, number, request, before_ns)
        place[ARRIVAL] += 1
        place[ENGINE] = 0
