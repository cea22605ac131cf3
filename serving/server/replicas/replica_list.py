"""What an operator sees of a service's replicas: the answer of `GET /replicas`."""

from typing import Final

import msgspec

from serving.server.replicas.live_replica import LiveReplica, ReplicaState

PATH: Final = "/replicas"


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica; ports are of its control service and console on loopback, 0 for none."""

    replica: int
    state: ReplicaState
    reason: str
    ultraserver: str
    first_chip: int
    chips: int
    pid: int | None
    requests_in_flight: int
    load_tokens: int
    requests: int
    lost_requests: int
    restarts: int
    fingerprint: str
    control_port: int
    console_port: int


class ReplicaList(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas, by number."""

    replicas: tuple[ReplicaReport, ...]


def replica_list(live: tuple[LiveReplica, ...]) -> bytes:
    """The list of now, as JSON."""
    return msgspec.json.encode(ReplicaList(replicas=tuple(map(_report, live))))


def _report(each: LiveReplica) -> ReplicaReport:
    place = each.place
    return ReplicaReport(
        replica=place.number,
        state=each.state,
        reason=each.reason,
        ultraserver=place.ultraserver,
        first_chip=place.first_chip,
        chips=place.chips,
        pid=each.pid,
        requests_in_flight=each.in_flight,
        load_tokens=each.load_tokens,
        requests=each.requests,
        lost_requests=each.losses,
        restarts=each.restarts,
        fingerprint=each.fingerprint,
        control_port=place.control_port,
        console_port=place.console_port,
    )
