"""The control service and the console of a service of replicas, at one address.

A call goes on to the replica that it names; what was published there is noted, and published again
on the replica's next process before it takes requests.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import aiohttp
from google.protobuf.message import Message

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.access.control_key import held_control_key, noted_console_port
from serving.access.key_ring import KeyRing
from serving.policy.rank_roles import RankRole
from serving.server.control.call_failure import not_now
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_guard import LOOK_WALL_S_MAX, GuardLimits
from serving.server.control.control_messages import respond, word_of
from serving.server.control.control_ports import ControlPorts, PortsAccess
from serving.server.control.relay import ANSWER_WALL_S_MAX, REPLICA_SILENT, ControlRelay
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.grpc.rpc_errors import CallRefused
from serving.server.gateway.single_flight import SingleFlight
from serving.server.replicas.engine_silence import ENGINE_QUESTION_S_MAX
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.published_weights import Publication
from serving.server.replicas.replica_figures import ReplicaFigures, machine_figures
from serving.server.replicas.replica_list import ServicePorts, replica_list
from serving.server.replicas.service_console import ConsoleSources
from serving.wire.control_call import (
    GET_RANK_ROLES,
    GET_STATE,
    PUBLISH,
    ROLLBACK,
    SET_RANK_ROLE,
    RankWithRole,
    RolesReport,
)

FIGURES_AGE_S_MAX: Final = 1.0
"""Of what the list says of machines, in wall seconds: asking them is a call to each engine."""

_MARGIN_S: Final = 0.3
_POLL_S: Final = 0.2
_OUTCOME_UNKNOWN_S: Final = 120.0
"""Wall seconds in which a replica's weights are read: as long as a page waits for an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlace:
    """Where the control service of a service is; a port of 0 is none."""

    address: ControlAddress
    console_port: int


class ServiceControl:
    """The replicas' control services as one; `key` is theirs, which nobody else has, so that all
    calls come this way. Without a `place` there is none, and no figures. `change_role` gives a
    replica another role, where they have any; it raises ConfigError.

    Raises ConfigError or PortInUse in `start`.
    """

    def __init__(
        self,
        place: ControlPlace | None,
        settings: GatewaySettings,
        replicas: Sequence[LiveReplica],
        session: aiohttp.ClientSession,
        *,
        key: str,
        change_role: Callable[[int, RankRole], None] | None = None,
    ) -> None:
        self._change_role = change_role
        roles = {GET_RANK_ROLES.name: self._roles, SET_RANK_ROLE.name: self._set_role}
        self._place = place
        self._key = key
        self._settings = settings
        self._replicas = replicas
        self._session = session
        self._held = ExitStack()
        self._ports: ControlPorts | None = None
        self._figures = SingleFlight(self._ask_all)
        self._relay = ControlRelay(
            [] if place is None else [ControlAddress(port=r.place.control_port) for r in replicas],
            key,
            passed=self._note,
            check=self._check,
            own={} if change_role is None else roles,
        )

    def open(self) -> str | None:
        """Hold the control port and its key until `stop`; the key, or None without a place."""
        if self._place is None:
            return None
        port, console = self._place.address.port, self._place.console_port
        key_file = self._settings.control_key_file
        secret = self._held.enter_context(held_control_key(port, os.environ, key_file=key_file))
        if console:
            self._held.enter_context(noted_console_port(port, console, os.environ))
        return secret

    async def start(self, keys: KeyRing) -> None:
        """Listen, for whom `keys` admits."""
        if self._place is None:
            return
        sources = ConsoleSources(
            replicas=self._replicas,
            session=self._session,
            listed=self.listed,
            number_of=self._relay.number_of,
            key=self._key,
        )
        self._ports = ControlPorts(
            self._place.address,
            self._relay.handlers(),
            sources.stream,
            PortsAccess(
                admits=keys.admits_control,
                named=keys.name_of,
                console_port=self._place.console_port,
                # A replica that answers late says so within its own limit.
                limits=GuardLimits(
                    look_wall_s_max=max(LOOK_WALL_S_MAX, ANSWER_WALL_S_MAX) + _MARGIN_S
                ),
                tls=self._settings.tls,
            ),
            relays=True,
        )
        await self._ports.start()

    async def stop(self) -> None:
        """End; idempotent."""
        if self._ports is not None:
            await self._ports.stop_health()
            await self._ports.stop()
        await self._figures.stop()
        await self._relay.close()
        self._held.close()

    async def listed(self, age_s_max: float = FIGURES_AGE_S_MAX) -> bytes:
        """The list of all replicas as JSON, with their machines' figures."""
        if self._place is None:
            return replica_list(self._replicas, [None] * len(self._replicas), ServicePorts())
        figures = await self._figures.fresh(age_s_max)
        port, console_port = self._place.address.port, self._place.console_port
        ports = ServicePorts(control_port=port, console_port=console_port)
        return replica_list(self._replicas, figures, ports)

    async def publish_again(self, replica: LiveReplica) -> str:
        """Let a new process serve what was published before; why it does not yet, or "".

        Returns when every block of its chips serves it.
        """
        number, order = replica.place.number, replica.published.order
        if not order:
            return ""
        try:
            async with asyncio.timeout(_OUTCOME_UNKNOWN_S):
                versions = [await self._publish(number, each) for each in order]
                replica.published.repeated(versions)
                while (await self._snapshot(number)).report.telemetry.rollout_blocks_pending:
                    await asyncio.sleep(_POLL_S)
        except (CallRefused, TimeoutError) as error:
            return f"it has not read {order[-1].weights_dir}: {error}"
        return ""

    async def engine_age_s(self, replica: LiveReplica) -> float | None:
        """The age of the engine's last answer in wall seconds, which the replica keeps while a step
        takes long; 0 where the replica does not answer, which is not its engine's fault; None where
        it has no answer of its engine.
        """
        if self._place is None:
            return 0.0
        number, request = replica.place.number, pb.GetStateRequest()
        try:
            response = await self._relay.raw(
                number, GET_STATE.name, request, wall_s=ENGINE_QUESTION_S_MAX
            )
        except CallRefused as error:
            return 0.0 if error.failure.reason == REPLICA_SILENT else None
        assert isinstance(response, pb.GetStateResponse)
        return response.state.age_s

    async def _publish(self, number: int, publication: Publication) -> int:
        report = await self._relay.call(
            number, PUBLISH, weights_dir=publication.weights_dir, note=publication.note
        )
        return report.version

    def _roles(self, number: int, _: Message) -> Message:
        return respond(pb.GetRankRolesResponse, self._ranks(number))

    def _set_role(self, number: int, request: Message) -> Message:
        assert isinstance(request, pb.SetRankRoleRequest)
        assert self._change_role is not None
        word = word_of(request, "role")
        if word not in tuple(RankRole):
            raise ConfigError("role", word, f"one of {', '.join(RankRole)}")
        if not request.all_ranks:
            raise ConfigError("rank", request.rank, "none: all of a replica have its role")
        self._change_role(number, RankRole(word))
        return respond(pb.SetRankRoleResponse, self._ranks(number))

    def _ranks(self, number: int) -> RolesReport:
        """The replica's ranks, which all have its role."""
        replica = self._replicas[number]
        assert replica.role is not None
        ranks = range(replica.place.ranks)
        return RolesReport(ranks=tuple(RankWithRole(rank=r, role=replica.role) for r in ranks))

    def _check(self, number: int, name: str) -> None:
        """Raises CallRefused for weights that would come between those published again."""
        if name in (PUBLISH.name, ROLLBACK.name) and not self._replicas[number].is_prepared:
            raise not_now(f"replica {number} is starting: its weights change once it is ready")

    def _note(self, number: int, name: str, request: Message, response: Message) -> None:
        published = self._replicas[number].published
        if name == PUBLISH.name:
            assert isinstance(request, pb.PublishRequest)
            assert isinstance(response, pb.PublishResponse)
            published.publish(
                Publication(
                    weights_dir=request.weights_dir,
                    note=request.note,
                    version=response.report.version,
                )
            )
        elif name == ROLLBACK.name:
            assert isinstance(response, pb.RollbackResponse)
            published.roll_back(response.report.version)

    async def _ask_all(self) -> list[ReplicaFigures | None]:
        return list(await asyncio.gather(*(self._ask(each) for each in self._replicas)))

    async def _ask(self, replica: LiveReplica) -> ReplicaFigures | None:
        if replica.pid is None:
            return None
        try:
            return machine_figures(await self._snapshot(replica.place.number))
        except CallRefused:
            return None

    async def _snapshot(self, number: int) -> pb.GetHardwareResponse:
        response = await self._relay.raw(number, "GetHardware", pb.GetHardwareRequest())
        assert isinstance(response, pb.GetHardwareResponse)
        return response
