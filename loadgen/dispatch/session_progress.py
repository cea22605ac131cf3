"""Dependencies among a session's calls. Pure."""

from loadgen.records.request import Session


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
