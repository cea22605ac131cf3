"""Engines behind a router that looks at their loads, compiled: steps until a request comes, which
goes to the engine with the fewest tokens.

What `LockstepSchedulers` and `routers.least_loaded` do, request by request.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from emulator.arrays import Bools, Int64s
from emulator.compiled import allocating, compiled
from serving.simulator.rank_queues import held_tokens
from serving.simulator.scheduler_arrays import NONE, SchedulerArrays, SchedulerBounds
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
def _step(
    pool: SchedulerArrays,
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
    return step_on(
        _engine(pool, number), bounds, None, rules, None, (coming, judged), record, stops
    )


@compiled
def _has_to_do(own: PoolComing, r: StepRunRecord, until_ns: int, number: int) -> bool:
    """Whether a step of the engine ends or begins by then."""
    if r.run[number].end_ns != NONE:
        return r.run[number].end_ns <= until_ns
    return r.run[number].requests > 0 or r.run[number].taken < own.routed[number]


@allocating
def _least_loaded(pool: SchedulerArrays, own: PoolComing, r: StepRunRecord) -> int:
    """The engine that holds the fewest tokens, computed or not; the first of several."""
    best = 0
    for number in range(len(r.run)):
        if own.load_tokens[number] == NONE:
            tokens = held_tokens(_engine(pool, number))
            for place in range(r.run[number].taken, own.routed[number]):
                tokens += pool.requests[own.request[number, place]].tokens
            own.load_tokens[number] = tokens
        if own.load_tokens[number] < own.load_tokens[best]:
            best = number
    return best


@compiled
def _route(pool: SchedulerArrays, own: PoolComing, number: int, request: int, at_ns: int) -> None:
    """Send a request to an engine, which takes it when it can."""
    at = own.routed[number]
    own.request[number, at], own.at_ns[number, at] = request, at_ns
    own.routed[number] += 1
    own.load_tokens[number] += pool.requests[request].tokens


def run_pool(
    pool: SchedulerArrays,
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
        _route(pool, own, _least_loaded(pool, own, r), request, before_ns)
        place[ARRIVAL] += 1
        place[ENGINE] = 0
