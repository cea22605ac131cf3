"""What an operator sees of a service's replicas: the answer of `GET /replicas`."""

from collections.abc import Sequence
from typing import Final

import msgspec

from serving.policy.rank_roles import RankRole
from serving.server.replicas.live_replica import LiveReplica, ReplicaState
from serving.server.replicas.replica_figures import ReplicaFigures, sum_of

PATH: Final = "/replicas"


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica; `figures` are its machine's, None while it says none. Ports are of its control
    service and console on loopback, 0 for none.
    """

    replica: int
    state: ReplicaState
    role: RankRole | None = None
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
    figures: ReplicaFigures | None


class ServicePorts(msgspec.Struct, frozen=True, kw_only=True):
    """Ports of the service's own control service and console, 0 for none."""

    control_port: int = 0
    console_port: int = 0


class ReplicaList(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas, by number; `figures` are of all machines together, None where none has said
    any.
    """

    replicas: tuple[ReplicaReport, ...]
    figures: ReplicaFigures | None
    ports: ServicePorts


def replica_list(
    live: Sequence[LiveReplica], figures: Sequence[ReplicaFigures | None], ports: ServicePorts
) -> bytes:
    """The list of now, as JSON; `figures` of each replica's machine."""
    known = [each for each in figures if each is not None]
    listed = ReplicaList(
        replicas=tuple(map(_report, live, figures)),
        figures=sum_of(known) if known else None,
        ports=ports,
    )
    return msgspec.json.encode(listed)


def _report(each: LiveReplica, figures: ReplicaFigures | None) -> ReplicaReport:
    place = each.place
    return ReplicaReport(
        replica=place.number,
        state=each.state,
        role=each.role,
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
        figures=figures,
    )
