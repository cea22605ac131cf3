"""The sessions of a class, or of a worker's part, in order; repeated if need be.

Within a session calls depend on each other, and later ones carry the server's replies. Pure.
"""

from dataclasses import replace

from loadgen.clients.client import Reply
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.records.request import Message, Prompt, Request, Session


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


class SessionProgress:
    """State of one session. Every call becomes due once, or is lost.

    A call is lost when one it waits for failed or was lost: its history is missing.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._missing = [len(set(call.after)) for call in session.calls]
        self._ended_ns = [0] * len(session.calls)  # the latest end of what each has waited for
        self._lost = [False] * len(session.calls)
        self._waiters: list[list[int]] = [[] for _ in session.calls]
        for position, call in enumerate(session.calls):
            for other in set(call.after):
                self._waiters[other].append(position)
        self._open = len(session.calls)

    @property
    def over(self) -> bool:
        """Whether every call has ended or is lost."""
        return self._open == 0

    def first(self) -> list[int]:
        """Positions of calls without dependencies."""
        return [at for at, missing in enumerate(self._missing) if missing == 0]

    def ended(self, position: int, ended_ns: int) -> list[tuple[int, int]]:
        """Note an end; returns the calls freed by it, each with the latest end of its dependencies,
        from which its think time runs.
        """
        self._open -= 1
        freed = []
        for waiter in self._waiters[position]:
            self._missing[waiter] -= 1
            self._ended_ns[waiter] = max(self._ended_ns[waiter], ended_ns)
            if self._missing[waiter] == 0 and not self._lost[waiter]:
                freed.append((waiter, self._ended_ns[waiter]))
        return freed

    def failed(self, position: int) -> None:
        """Note a call without a whole reply: all its dependents are lost."""
        self._open -= 1
        doomed = list(self._waiters[position])
        while doomed:
            waiter = doomed.pop()
            if not self._lost[waiter]:
                self._lost[waiter] = True
                self._open -= 1
                doomed += self._waiters[waiter]


class ServedHistory:
    """Replies of one session, in the form of its prompts: texts or token ids."""

    def __init__(self, session: Session) -> None:
        contents = session.calls[0].request.messages[0].content
        self._texts = isinstance(contents, str)
        self._asked = [call.request.output_tokens for call in session.calls]
        self._said: dict[int, Prompt] = {}
        self._tokens: dict[int, int] = {}  # how many of them, by the server's count

    def keep(self, position: int, reply: Reply) -> None:
        """Keep the reply of the call at `position`; one without text or ids is ignored."""
        said: Prompt | None = reply.text if self._texts else reply.token_ids
        if said is None:
            return
        self._said[position] = said
        if not isinstance(said, str):
            self._tokens[position] = len(said)
        elif reply.output_tokens is not None:
            self._tokens[position] = reply.output_tokens

    def completed(self, request: Request) -> tuple[Request, bool]:
        """The request with the server's replies for planned ones, and whether all were there.

        `input_tokens` follows the server's counts of its replies.
        """
        messages: list[Message] = []
        longer_tokens = 0
        whole = True
        for message in request.messages:
            position = message.reply_of
            if position is None:
                messages.append(message)
            elif position in self._said:
                messages.append(replace(message, content=self._said[position]))
                longer_tokens += self._tokens.get(position, self._asked[position])
                longer_tokens -= self._asked[position]
            else:
                whole = False
                messages.append(message)
        input_tokens = max(1, request.input_tokens + longer_tokens)
        return replace(request, messages=tuple(messages), input_tokens=input_tokens), whole
