"""What free groups do: batch requests with hours of time, or training. Pure.

A group is free when the day-and-night policy wants fewer groups to serve than there are, which is
what night means here. By night batch requests run on all groups that serve, and those that find no
seat there hold free groups in service, or leave them to training: by the order given. A batch whose
deadline is near runs by day too, on the seats that interactive requests leave, and holds free
groups in either order.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class NightOrder(StrEnum):
    """Who has free groups first."""

    BATCH_FIRST = "batch,training"
    TRAINING_FIRST = "training,batch"
    BATCH_ALONE = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDemand:
    """Batch requests that are not answered, and those of them whose deadline is near.

    `seats` are those of all groups that serve now. `arrived` are sequences that the engine has had
    of such requests, ever, and `waiting` the requests among them that wait there: no demand that a
    policy must meet.
    """

    requests: int
    due_requests: int
    seats: int
    arrived: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NightShare:
    """Whether requests that are not due may run, free groups that stay in service, and why."""

    may_run: bool
    held_groups: int
    words: str


NO_BATCHES: Final = BatchDemand(requests=0, due_requests=0, seats=0)
"""Of a server without batches."""

ANY_TIME: Final = NightShare(may_run=True, held_groups=0, words="batch requests run at any time")
"""Where no policy says when it is night."""


UNDECIDED: Final = NightShare(may_run=False, held_groups=0, words="no policy has decided yet")
"""Of a controller that has not looked yet."""


def night_share(
    order: NightOrder,
    demand: BatchDemand,
    *,
    groups: int,
    wanted_groups: int,
    serving_groups: int,
    held_groups: int,
) -> NightShare:
    """The share of batch requests when the policy wants `wanted_groups` of `groups` to serve.

    `serving_groups` do now, with the demand's seats. `held_groups` are held already: none is let go
    before the requests that need them are answered, as a job restarts whenever its chips change.
    """
    free = groups - wanted_groups
    if not free:
        waiting = demand.requests - demand.due_requests
        words = f"{waiting:,} batch requests wait for the night" if waiting else "no group is free"
        return NightShare(may_run=False, held_groups=0, words=words)
    if order is NightOrder.BATCH_ALONE:
        return NightShare(may_run=True, held_groups=free, words="free groups are for batches alone")
    is_first = order is NightOrder.BATCH_FIRST
    asking = demand.requests if is_first else demand.due_requests
    if not asking:
        return NightShare(may_run=True, held_groups=0, words="no batch request asks for a group")
    group_seats = max(1, demand.seats // max(1, serving_groups))
    needed = -(-asking // group_seats) - wanted_groups
    held = min(free, max(needed, held_groups, 0))
    kind = "" if is_first else "due "
    words = f"{asking:,} {kind}batch requests, {group_seats:,} seats a group"
    return NightShare(may_run=True, held_groups=held, words=words)


_UNMEASURED_SHARE: Final = 0.25
"""Of its time that a batch keeps until a pace is measured. Assumed."""

_SAFETY: Final = 2.0
"""Times the expected rest. Assumed: the pace of a day is at most so much below the measured one."""

_LEAST_SHARE: Final = 1 / 24
"""Of its time that a batch keeps at least: an hour of a day. Assumed."""


def is_due(
    *, left_s: float, window_s: float, requests_ahead: int, requests_per_s: float | None
) -> bool:
    """Whether a batch with `left_s` of `window_s` left must run now.

    `requests_ahead` are unanswered ones up to its own last, in order of deadlines;
    `requests_per_s` is how many were answered a second while some ran, None before any. Seconds
    of one clock.
    """
    if requests_per_s is None:
        return left_s <= _UNMEASURED_SHARE * window_s
    rest_s = requests_ahead / requests_per_s
    return left_s <= max(_SAFETY * rest_s, _LEAST_SHARE * window_s)
