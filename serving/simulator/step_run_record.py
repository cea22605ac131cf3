"""What a compiled run of steps is given and leaves: its records, rules, room and stops."""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Int32s, Int64s
from emulator.ultraserver.cost_kernel import KeptStep, StepTables
from emulator.ultraserver.request_kernel import DECODE_TOTALS
from serving.policy.prefill_throttle import EvenLevel
from serving.simulator.scheduler_arrays import Records

UNDER_WAY: Final = 0
"""The step under way ends later than `until_ns`."""
WAITS: Final = 1
"""Nothing to do before `until_ns`."""
STOPPED: Final = 2
"""After a step, as `Stops` says."""
EMPTY: Final = 3
"""The schedulers have decided, and no rank computes anything."""
UNKNOWN: Final = 4
"""The tables do not know the tokens of the step that is decided."""
FULL: Final = 5
"""The next step may preempt requests, whose blocks a cache has to keep."""
GO_ON: Final = 6
"""A step is decided."""
ON_WAY: Final = 7
"""The next step begins when KV is there."""

RUN: Final = np.dtype(
    [
        ("now_ns", np.int64),
        ("end_ns", np.int64),  # of the step under way, or NONE
        ("rows", np.int64),  # of the step that is decided, or 0
        ("requests", np.int64),  # that run or wait
        ("taken", np.int64),  # of those that come
        ("judged_left", np.int64),
        ("done", np.int64),  # requests with all their tokens
        ("ended", np.int64),  # of them, by the last step
        ("free_blocks_min", np.int64),
        ("empty_rank_steps", np.int64),
        ("patience", np.int64),  # steps before requests stand
        ("stands", np.bool_),  # whether they do
        ("logs_tokens", np.bool_),
        ("lacks_cache", np.bool_),  # which preempted requests would hit
        ("busy_ns", np.int64),
        ("joules", np.float64),
    ]
)
STEP: Final = np.dtype(
    [
        ("begin_ns", np.int64),
        ("duration_ns", np.int64),
        ("throttled_ns", np.float64),  # of the duration, by a power limit
        ("joules", np.float64),
        ("tokens", np.int64),
    ]
)


class StepRoom(NamedTuple):
    """Room for one step's arrays."""

    pending: Int64s  # [ranks]
    rows: Int64s  # [ranks]
    nothing: Int64s  # totals of no standing requests, [ranks, DECODE_TOTALS]
    decodes: Int64s  # [ranks]
    budgets: Int64s  # [ranks]
    logit_rows: Int64s  # [ranks]
    rank: Int64s  # [rows]
    new: Int64s  # [rows]
    context: Int64s  # [rows]
    request: Int64s  # [rows]
    block_left: Int64s  # tokens for which the request's last block has room, [rows]


def step_room(ranks: int, rows: int) -> StepRoom:
    """For so many."""
    of_ranks, of_rows = (ranks,), (rows,)
    lengths = (of_ranks, of_ranks, (ranks, DECODE_TOTALS), *(of_ranks,) * 3, *(of_rows,) * 5)
    return StepRoom(*(np.zeros(length, dtype=np.int64) for length in lengths))


class StepRules(NamedTuple):
    """How steps are decided and costed."""

    pending_enough: int  # tokens that are enough to count, 0 for no counting
    level: EvenLevel
    costs: StepTables
    keeps: KeptStep
    room: StepRoom


class StepRunRecord(NamedTuple):
    """What a run leaves: `run` is one RUN; `steps` and `tokens` of `counts` are filled so far.

    Where tokens are not logged, `given` is room for those of a step.
    """

    run: Records  # RUN [1]
    steps: Records  # STEP [most steps]
    given: Int32s  # requests that got a token, in order: [most tokens]
    counts: Int64s  # [steps, tokens]


class Coming(NamedTuple):
    """Requests that come to an engine and when, in this order: [coming]."""

    request: Int64s
    at_ns: Int64s


class PoolComing(NamedTuple):
    """Requests that have been routed to each engine of several, and not taken: so many of each."""

    request: Int64s  # [engines, most]
    at_ns: Int64s  # [engines, most]
    routed: Int64s  # [engines]
    load_tokens: Int64s  # of each engine, NONE where not known: [engines]


ARRIVAL: Final = 0
ENGINE: Final = 1
"""Where a pool's place has the next request to come, and the engine that steps next."""

NOTHING_COMES: Final = Coming(
    request=np.zeros(0, dtype=np.int64), at_ns=np.zeros(0, dtype=np.int64)
)


class Stops(NamedTuple):
    """When a run stops: before a step that would begin at `until_ns` or later; after one with so
    many logged, or after one that ends requests.
    """

    until_ns: int
    steps: int
    at_ends: bool
