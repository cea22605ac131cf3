"""Sessions of given shapes, and pacers for tests of the dispatcher."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.pacer import Pacer
from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.arrivals.schedule import ArrivalSchedule
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.records.request import Call, Message, Request, Session

MS = 1_000_000


@dataclass(frozen=True)
class Shape:
    """A call's dependencies and think time."""

    after: tuple[int, ...] = ()
    think_ms: int = 0


ONE = (Shape(),)
TALK = (Shape(), Shape(after=(0,), think_ms=50), Shape(after=(1,), think_ms=20))


class ShapedWorkload:
    """Sessions of the given shapes; a call carries the planned replies of its dependencies."""

    def __init__(
        self,
        sessions: Sequence[Sequence[Shape]],
        name: str = "default",
        *,
        keep_reply: bool = False,
    ) -> None:
        self._keep_reply = keep_reply
        self._sessions = sessions
        self._name = name
        self._first_id = np.cumsum([0, *(len(calls) for calls in sessions)])

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def requests(self) -> int:
        return int(self._first_id[-1])

    def requests_of(self, index: int) -> int:
        return len(self._sessions[index])

    def session(self, index: int) -> Session:
        calls = []
        for turn, shape in enumerate(self._sessions[index]):
            earlier = [
                Message(role="assistant", content=f" planned {other}", reply_of=other)
                for other in shape.after
            ]
            request = Request(
                request_id=int(self._first_id[index]) + turn,
                traffic_class=self._name,
                session_id=index,
                turn=turn,
                messages=(Message(role="user", content=f"ask {index}"), *earlier),
                input_tokens=4,
                output_tokens=2,
                keep_reply=self._keep_reply,
            )
            calls.append(Call(request=request, after=shape.after, think_ns=shape.think_ms * MS))
        return Session(session_id=index, calls=tuple(calls))


def even(count: int, gap_ms: float = 10.0) -> ArrivalSchedule:
    return ArrivalSchedule(due_ns=np.rint(np.arange(count) * gap_ms * MS).astype(np.int64))


def closed(*levels: tuple[float, float], ends_ms: int | None = None) -> ClosedLoop:
    shape = PiecewiseLinear(
        times_s=tuple(at for at, _ in levels),
        rates_per_s=tuple(level for _, level in levels),
    )
    return ClosedLoop(concurrency=shape, ends_ns=None if ends_ms is None else ends_ms * MS)


def traffic(
    pacer: Pacer,
    *,
    sessions: Sequence[Sequence[Shape]],
    name: str = "default",
    max_in_flight: int = 512,
    wall_per_pace: float = 1.0,
    start_ms: int = 0,
    served_history: bool = False,
) -> DispatchedClass:
    return DispatchedClass(
        name=name,
        workload=ShapedWorkload(sessions, name),
        pacer=pacer,
        wall_per_pace=wall_per_pace,
        max_in_flight=max_in_flight,
        start_ns=start_ms * MS,
        served_history=served_history,
    )
