"""Liveness and readiness of a service of replicas: ready while one of them is."""

from collections.abc import Callable

from serving.policy.admission.refusal import RefusalReason, Refused
from serving.server.gateway.readiness import REST_RETRY_S, refused
from serving.server.replicas.live_replicas import LiveReplicas


class ReplicaReadiness:
    """Answers probes; `closed` is the gateway's refusal, None while it is open."""

    def __init__(self, replicas: LiveReplicas, closed: Callable[[], Refused | None]) -> None:
        self._replicas = replicas
        self._closed = closed

    def not_alive(self) -> str | None:
        """Always None: a replica that is gone is started again here."""
        return None

    async def not_ready(self) -> str | None:
        """Why no request should be sent here now, in one line, or None."""
        closed = self._closed()
        return self._none_ready() if closed is None else str(closed)

    async def refusal(self) -> Refused | None:
        """A new refusal of a request that comes while no replica is ready, or None."""
        reason = self._none_ready()
        if reason is None:
            return None
        return refused(RefusalReason.NO_RANK_UP, reason, REST_RETRY_S)

    def failure(self) -> Refused | None:
        """Always None: an admitted request waits for a replica."""
        return None

    def _none_ready(self) -> str | None:
        if self._replicas.ready:
            return None
        states = (
            f"{each.place.number} is {each.state}" + (f" ({each.reason})" if each.reason else "")
            for each in self._replicas.all
        )
        return f"no replica is ready: {', '.join(states)}"
