"""Weights, roles and engines of replicas, by a relay before servers that answer as a test says."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf.message import Message

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import roles_pb2
from serving.policy.rank_roles import RankRole
from serving.server.control import relay
from serving.server.control.call_failure import engine_busy, outcome_unknown
from serving.server.control.control_address import ControlAddress
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.published_weights import Publication
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.service_control import ControlPlace, ServiceControl

CONTEXT: Any = SimpleNamespace(
    invocation_metadata=lambda: [("ultraserve-replica", "0"), ("idempotency-key", "a")]
)
PLACE = ReplicaPlace(
    number=0,
    ultraserver="0",
    first_chip=0,
    chips=1,
    visible_cores="0-3",
    control_port=1,
    console_port=0,
)


class Served:
    """A control service whose replica's answers are `answer`'s."""

    def __init__(
        self, session: aiohttp.ClientSession, answer: Callable[[str, Message], Message]
    ) -> None:
        self.replica = LiveReplica(place=PLACE)
        place = ControlPlace(address=ControlAddress(port=2), console_port=0)
        self.control = ServiceControl(place, GatewaySettings(), [self.replica], session, key="k")
        self.answer = answer
        self.control._relay.raw = self._raw  # type: ignore[method-assign]

    async def _raw(self, number: int, name: str, request: Message, **_: Any) -> Message:
        assert number == self.replica.place.number
        await asyncio.sleep(0)
        return self.answer(name, request)

    async def publish(self, weights_dir: str) -> Message:
        request = pb.PublishRequest(weights_dir=weights_dir)
        response: Message = await self.control._relay._called("Publish")(request, CONTEXT)
        return response

    @property
    def order(self) -> list[tuple[str, int]]:
        return [(each.weights_dir, each.version) for each in self.replica.published.order]


def published(version: int) -> pb.PublishResponse:
    response = pb.PublishResponse()
    response.report.version = version
    return response


def test_nobody_publishes_between_weights_that_are_published_again() -> None:
    async def use() -> None:
        async with aiohttp.ClientSession() as session:
            versions = iter(range(2, 9))
            served = Served(session, lambda *_: published(next(versions)))
            with pytest.raises(CallRefused, match="replica 0 is starting"):
                await served.publish("x")
            with pytest.raises(CallRefused, match="replica 0 is starting"):
                await served.control._relay._called("Rollback")(pb.RollbackRequest(), CONTEXT)
            assert served.order == []
            served.replica.is_prepared = True
            await served.publish("a")
            assert served.order == [("a", 2)]

    asyncio.run(use())


def test_an_outcome_is_noted_though_nobody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_ASK_AGAIN_S", 0.001)
    asked: list[str] = []

    def answer(name: str, _: Message) -> Message:
        asked.append(name)
        if len(asked) < 4:
            raise outcome_unknown("a", "not yet")
        return published(2)

    async def use() -> None:
        async with aiohttp.ClientSession() as session:
            served = Served(session, answer)
            served.replica.is_prepared = True
            with pytest.raises(CallRefused, match="not yet"):
                await served.publish("a")
            async with asyncio.timeout(5.0):
                while not served.order:
                    await asyncio.sleep(0.001)
            assert served.order == [("a", 2)]
            await asyncio.sleep(0.02)
            assert len(asked) == 4
            await served.control.stop()

    asyncio.run(use())


def test_an_outcome_is_not_asked_of_a_process_that_has_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "_ASK_AGAIN_S", 0.001)
    asked: list[str] = []

    def answer(name: str, _: Message) -> Message:
        asked.append(name)
        raise outcome_unknown("a", "not yet")

    async def use() -> None:
        async with aiohttp.ClientSession() as session:
            served = Served(session, answer)
            served.replica.is_prepared = True
            with pytest.raises(CallRefused, match="not yet"):
                await served.publish("a")
            served.replica.is_prepared = False
            await asyncio.sleep(0.02)
            assert len(asked) == 1
            assert not served.control._relay._follows
            await served.control.stop()

    asyncio.run(use())


def test_a_late_outcome_comes_before_later_weights() -> None:
    replica = LiveReplica(place=PLACE)
    for version in (3, 2, 3):
        replica.published.publish(Publication(weights_dir="", note="", version=version))
    assert [each.version for each in replica.published.order] == [2, 3]


def test_an_engine_is_young_where_its_replica_is_silent_alone() -> None:
    silent = RpcFailure(grpc.StatusCode.UNAVAILABLE, relay.REPLICA_SILENT, "silent")

    async def age_s(error: CallRefused) -> float | None:
        def answer(*_: object) -> Message:
            raise error

        async with aiohttp.ClientSession() as session:
            served = Served(session, answer)
            return await served.control.engine_age_s(served.replica)

    assert asyncio.run(age_s(CallRefused(silent))) == 0.0
    assert asyncio.run(age_s(engine_busy(1.5))) is None


def test_a_replicas_role_is_the_services_to_say_and_to_change() -> None:
    replica = LiveReplica(place=replace(PLACE, role=RankRole.PREFILL, ranks=2))

    def change(number: int, role: RankRole) -> None:
        if role is RankRole.BOTH:
            raise ConfigError("role", role, "another one")
        assert number == 0
        replica.role = role

    async def use() -> None:
        async with aiohttp.ClientSession() as session:
            control = ServiceControl(
                ControlPlace(address=ControlAddress(port=2), console_port=0),
                GatewaySettings(),
                [replica],
                session,
                key="k",
                change_role=change,
            )

            async def answer(request: Message) -> list[tuple[int, int]]:
                name = request.DESCRIPTOR.name.removesuffix("Request")
                response = await control._relay._called(name)(request, CONTEXT)
                return [(each.rank, each.role) for each in response.report.ranks]

            prefill, decode = roles_pb2.RANK_ROLE_PREFILL, roles_pb2.RANK_ROLE_DECODE
            assert await answer(pb.GetRankRolesRequest()) == [(0, prefill), (1, prefill)]
            asked = pb.SetRankRoleRequest(role=decode, all_ranks=True)
            assert await answer(asked) == [(0, decode), (1, decode)]
            assert await answer(pb.GetRankRolesRequest()) == [(0, decode), (1, decode)]
            with pytest.raises(ConfigError, match="rank=1: expected none"):
                await answer(pb.SetRankRoleRequest(rank=1, role=prefill))
            with pytest.raises(ConfigError, match="role=unspecified: expected one of prefill, dec"):
                await answer(pb.SetRankRoleRequest(all_ranks=True))
            with pytest.raises(ConfigError, match="role=both"):
                await answer(pb.SetRankRoleRequest(role=roles_pb2.RANK_ROLE_BOTH, all_ranks=True))
            assert replica.role is RankRole.DECODE

    asyncio.run(use())
