"""The sessions of a class, or of a worker's part, in order; repeated if need be."""

from dataclasses import replace

from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.records.request import Session


class SessionSource:
    """Numbers the sessions of a class from 0, and counts their requests."""

    def __init__(self, traffic: DispatchedClass) -> None:
        self._workload = traffic.workload
        self._first = traffic.first
        self._stride = traffic.stride
        self.part_sessions = len(range(traffic.first, len(traffic.workload), traffic.stride))
        """Sessions of the workload in this part."""
        paced = traffic.pacer.sessions
        self.sessions_max: int | None = None
        """Most sessions that may begin; None if only time ends them."""
        if paced is not None:
            self.sessions_max = min(paced, self.part_sessions)
        elif traffic.pacer.ends_ns is None:
            self.sessions_max = self.part_sessions

    def session(self, number: int) -> Session:
        """Session `number` of this part; after the workload's last come its first ones again."""
        workload = self._workload
        lap, index = divmod(self._first + number * self._stride, len(workload))
        session = workload.session(index)
        return session if lap == 0 else _again(session, lap, workload.requests, len(workload))

    def requests_from(self, begun: int) -> int:
        """Requests of the sessions after the first `begun`; 0 if time ends them."""
        if self.sessions_max is None:
            return 0
        rest = range(begun, self.sessions_max)
        return sum(self._workload.requests_of(self._first + k * self._stride) for k in rest)


def _again(session: Session, lap: int, requests: int, sessions: int) -> Session:
    """A repeated session under new numbers; replies are not kept."""
    calls = tuple(
        replace(
            call,
            request=replace(
                call.request,
                request_id=call.request.request_id + lap * requests,
                session_id=call.request.session_id + lap * sessions,
                keep_reply=False,
            ),
        )
        for call in session.calls
    )
    return Session(session_id=session.session_id + lap * sessions, calls=calls)
