"""What the engine's service tells about itself; health; reflection."""

import asyncio
import hashlib
import io
import zipfile
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from smg_grpc_servicer.vllm import mm_processor

from emulator.data import SMALL_MOE_DIR
from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.refusal import RefusalReason
from serving.server.gateway.grpc import connection_options, grpc_health
from serving.server.gateway.grpc.grpc_health import READY
from serving.server.gateway.grpc.grpc_server import PORT_LIMITS
from tests.serving.plugin.engine_config import BLOCK_TOKENS
from tests.serving.plugin.lockstep_machine import BLOCKS
from tests.serving.server.gateway.grpc.served_grpc import ServedGrpc, asking, failure, told
from tests.serving.server.gateway.grpc.test_grpc_generate import ENDLESS, STEP_S, run, running
from tests.serving.server.gateway.small_async_llm import CONTEXT_TOKENS, SEATS

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LIVE = ""


def test_the_model_is_told_as_it_is_served() -> None:
    async def check(at: ServedGrpc) -> None:
        info = await at.stub.GetModelInfo(pb.GetModelInfoRequest())

        assert info.max_context_length == info.max_req_input_len == CONTEXT_TOKENS
        assert info.vocab_size == at.engine.model_config.get_vocab_size()
        assert info.is_generation
        assert not info.supports_vision
        assert info.model_type == "qwen3_moe"

    run(check)


def test_the_servers_seats_are_those_of_all_ranks_and_its_state_is_admission_s() -> None:
    async def check(at: ServedGrpc) -> None:
        call = at.stub.Generate(asking(max_tokens=ENDLESS))
        await running(at, call)
        info = await at.stub.GetServerInfo(pb.GetServerInfoRequest())

        assert info.max_num_seqs == 3 * SEATS
        assert info.data_parallel_size == 1  # ranks are inside; nobody can pin a request to one
        assert info.active_requests == 1
        assert not info.is_paused
        assert info.server_type == "vllm-grpc"
        assert 0 < info.uptime_seconds < 60
        at.admission.close(RefusalReason.RESTING, "the engine sleeps", 1.0)
        assert (await at.stub.GetServerInfo(pb.GetServerInfoRequest())).is_paused
        call.cancel()

    run(check, ranks=3, step_s=STEP_S)


@pytest.mark.long
def test_loads_count_the_requests_and_the_kv_of_all_ranks() -> None:
    async def check(at: ServedGrpc) -> None:
        calls = [at.stub.Generate(asking(f"r{i}", max_tokens=ENDLESS)) for i in range(20)]
        async with asyncio.timeout(5.0):  # the newest figures are those of a step that has ended
            load = pb.SchedulerLoad()
            while (load.num_running_reqs, load.num_waiting_reqs) != (18, 2):
                (load,) = (await at.stub.GetLoads(pb.GetLoadsRequest())).loads
                await asyncio.sleep(STEP_S)

        assert load.max_running_requests == 3 * SEATS
        assert load.max_total_num_tokens == 3 * BLOCKS * BLOCK_TOKENS
        assert load.num_used_tokens == pytest.approx(
            at.core.used_blocks * BLOCK_TOKENS, rel=0.05, abs=18 * BLOCK_TOKENS
        )
        for call in calls:
            call.cancel()

    run(check, ranks=3, step_s=STEP_S)


def test_the_tokenizer_comes_whole_and_is_the_one_that_the_engine_has() -> None:
    async def check(at: ServedGrpc) -> None:
        chunks = await told(at.stub.GetTokenizer(common_pb2.GetTokenizerRequest()))

        archive = b"".join(chunk.data for chunk in chunks)
        assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
        with zipfile.ZipFile(io.BytesIO(archive)) as bundle:
            sent = bundle.read("tokenizer.json")
        assert sent == (SMALL_MOE_DIR / "tokenizer.json").read_bytes()

    run(check)


def test_the_prefix_cache_is_not_emptied_from_the_clients_port() -> None:
    async def check(at: ServedGrpc) -> None:
        prompt = range(5, 5 + 3 * BLOCK_TOKENS)
        await told(at.stub.Generate(asking("a", prompt)))

        for metadata in ([], [("x-api-key", "us-run")]):
            call = at.stub.FlushCache(common_pb2.FlushCacheRequest(), metadata=metadata)
            denied = await failure(call)
            assert denied.code is grpc.StatusCode.PERMISSION_DENIED
            assert denied.reason == "NOT_SERVED_HERE"

        (*_, warm) = await told(at.stub.Generate(asking("b", prompt)))
        assert warm.complete.cached_tokens > 0

    run(check, keys=KeyRing(control_secret="us-run"))


def test_the_published_warm_up_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the package's plugin does when vLLM's command line has been read.
    monkeypatch.setattr(mm_processor, "_launcher_settings", mm_processor.MmSettings())

    async def check(at: ServedGrpc) -> None:
        await asyncio.sleep(0.2)
        await told(at.stub.Generate(asking("first")))

        assert len(at.core.added) == 1

    run(check)


async def status(at: ServedGrpc, service: str) -> int:
    asked = health_pb2.HealthCheckRequest(service=service)
    answer = await health_pb2_grpc.HealthStub(at.channel).Check(asked)
    return int(answer.status)


def test_the_engine_s_own_health_check_is_readiness_which_gateways_go_by() -> None:
    async def check(at: ServedGrpc) -> None:
        told_of = await at.stub.HealthCheck(pb.HealthCheckRequest())
        assert told_of.healthy
        at.ready.busy = "it drains"
        told_of = await at.stub.HealthCheck(pb.HealthCheckRequest())
        assert (told_of.healthy, told_of.message) == (False, "it drains")
        at.ready.busy = None

    run(check)


def test_health_is_liveness_without_a_name_and_readiness_with_the_engines() -> None:
    async def check(at: ServedGrpc) -> None:
        assert [await status(at, LIVE), await status(at, READY)] == [SERVING, SERVING]
        at.ready.busy = "it drains"
        assert [await status(at, LIVE), await status(at, READY)] == [SERVING, NOT_SERVING]
        stub = health_pb2_grpc.HealthStub(at.channel)
        listed = (await stub.List(health_pb2.HealthListRequest())).statuses
        assert {name: each.status for name, each in listed.items()} == {
            LIVE: SERVING,
            READY: NOT_SERVING,
        }
        at.ready.dead = "the engine is gone"
        assert [await status(at, LIVE), await status(at, READY)] == [NOT_SERVING, NOT_SERVING]
        at.ready.dead = at.ready.busy = None
        assert [await status(at, LIVE), await status(at, READY)] == [SERVING, SERVING]

    run(check, keys=KeyRing(key_hashes=[hash_of("us-alice")]))  # and wants no key


def test_the_health_of_a_stranger_is_not_found() -> None:
    async def check(at: ServedGrpc) -> None:
        stub = health_pb2_grpc.HealthStub(at.channel)

        told_of = await failure(stub.Check(health_pb2.HealthCheckRequest(service="who")))

        assert told_of.code is grpc.StatusCode.NOT_FOUND

    run(check)


@pytest.mark.long
def test_a_watcher_is_told_of_every_change_until_the_server_ends() -> None:
    async def check(at: ServedGrpc) -> None:
        stub = health_pb2_grpc.HealthStub(at.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=READY))

        async def heard() -> int:
            return int((await asyncio.wait_for(watch.read(), 5.0)).status)

        assert await heard() == SERVING
        at.ready.busy = "it drains"
        assert await heard() == NOT_SERVING
        at.ready.busy = None
        assert await heard() == SERVING
        stopping = asyncio.ensure_future(at.server.stop(0.5))
        assert await heard() == NOT_SERVING
        await stopping

    run(check)


@pytest.mark.long
def test_for_one_watcher_of_health_too_many_the_oldest_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_health, "WATCHERS_MAX", 2)

    async def check(at: ServedGrpc) -> None:
        stub = health_pb2_grpc.HealthStub(at.channel)
        asked = health_pb2.HealthCheckRequest(service=READY)
        watches = []
        for _ in range(4):  # calls that are begun together come in any order
            watches.append(stub.Watch(asked))
            assert (await watches[-1].read()).status == SERVING
        oldest, *held = watches
        crowded = await failure(oldest)

        assert (crowded.code, crowded.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WATCHERS")
        assert "RetryInfo" in crowded.details
        assert await status(at, READY) == SERVING
        assert (await failure(held[0])).reason == "WATCHERS"
        at.ready.busy = "it drains"
        for watch in held[1:]:
            assert (await asyncio.wait_for(watch.read(), 5.0)).status == NOT_SERVING
            watch.cancel()
        async with asyncio.timeout(5.0):  # the server hears of it in a moment
            while at.server._health._watches:
                await asyncio.sleep(0.01)

    run(check)


@pytest.mark.long
def test_a_watch_of_health_ends_after_its_time_and_its_client_may_watch_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_health, "WATCH_WALL_S", 0.2)

    async def check(at: ServedGrpc) -> None:
        stub = health_pb2_grpc.HealthStub(at.channel)
        for _ in range(2):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=READY))
            assert (await watch.read()).status == SERVING
            over = await asyncio.wait_for(failure(watch), 5.0)
            assert (over.code, over.reason) == (grpc.StatusCode.UNAVAILABLE, "WATCH_TIME")
            assert "RetryInfo" in over.details

    run(check)


def test_watchers_leave_most_of_the_port_s_connections_to_others() -> None:
    assert PORT_LIMITS.strangers >= 4 * grpc_health.WATCHERS_MAX
    assert connection_options._IDLE_MS <= 20_000


@pytest.mark.long
def test_a_connection_without_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_options, "_IDLE_MS", 1_000)

    async def check(at: ServedGrpc) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.server_port)
        # HTTP/2's preface, settings, and the answer to the server's own: all but a call.
        settings = b"\0\0\0\x04\0\0\0\0\0"
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        writer.write(b"\0\0\0\x04\x01\0\0\0\0")
        async with asyncio.timeout(8.0):
            while await reader.read(2**16):
                pass
        writer.close()

    run(check)


def test_reflection_names_the_services() -> None:
    async def check(at: ServedGrpc) -> None:
        async def asks() -> Any:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        stub = reflection_pb2_grpc.ServerReflectionStub(at.channel)
        (answer,) = await told(stub.ServerReflectionInfo(asks()))

        names = {each.name for each in answer.list_services_response.service}
        assert names == {
            READY,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }

    run(check)
