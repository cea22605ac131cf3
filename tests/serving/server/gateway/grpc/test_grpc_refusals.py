"""What a client is told of a call that fails: a code, and google.rpc's details, each unpacked."""

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.refusal import RefusalReason
from serving.server.gateway.grpc import grpc_guard, message_turns
from serving.server.gateway.grpc.rpc_caller import ENGINE
from tests.serving.server.gateway.grpc.served_grpc import (
    ServedGrpc,
    asking,
    failure,
    served_grpc_server,
    told,
)
from tests.serving.server.gateway.grpc.test_grpc_generate import ENDLESS, STEP_S, run, running

Code = grpc.StatusCode


@contextmanager
def keys_in_a_file(text: str) -> Iterator[KeyRing]:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "keys.toml"
        path.write_text(text)
        path.chmod(0o600)
        yield KeyRing(key_file=path)


def field_of(told_of: Any) -> str:
    (violation,) = told_of.details["BadRequest"].field_violations
    assert violation.description == told_of.message
    return str(violation.field)


def test_a_prompt_that_is_too_long_is_invalid_and_never_comes_near_the_engine() -> None:
    async def check(at: ServedGrpc) -> None:
        told_of = await failure(at.stub.Generate(asking(tokens=[5] * 512)))

        assert (told_of.code, told_of.reason) == (Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
        assert field_of(told_of) == "tokenized.input_ids"
        assert told_of.details["ErrorInfo"].metadata["context_tokens"] == "512"
        assert at.core.added == []

    run(check)


@pytest.mark.long
def test_a_text_that_turns_out_too_long_is_told_in_the_same_words_for_programs() -> None:
    async def check(at: ServedGrpc) -> None:
        asked = pb.GenerateRequest(request_id="t", text="hello there, " * 400)

        told_of = await failure(at.stub.Generate(asked))

        assert (told_of.code, told_of.reason) == (Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG")

    run(check)


@pytest.mark.long
@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"temperature": -1.0}, "sampling_params.temperature"),
        ({"top_p": 2.0}, "sampling_params.top_p"),
        ({"min_p": 2.0}, "sampling_params.min_p"),
        ({"repetition_penalty": -1.0}, "sampling_params.repetition_penalty"),
        ({"frequency_penalty": 9.0}, "sampling_params.frequency_penalty"),
        ({"min_tokens": 9}, "sampling_params.min_tokens"),
        ({"logprobs": 100}, "sampling_params.logprobs"),
        ({"logprobs": -7}, "sampling_params.logprobs"),
        ({"prompt_logprobs": -7}, "sampling_params.prompt_logprobs"),
        ({"logit_bias": {10**6: 1.0}}, "sampling_params.logit_bias"),
        ({"stop": [""]}, "sampling_params.stop"),
        ({"max_tokens": 0}, "sampling_params.max_tokens"),
    ],
)
def test_what_vllm_finds_wrong_is_told_by_the_field_of_the_message(
    params: dict[str, Any], field: str
) -> None:
    async def check(at: ServedGrpc) -> None:
        told_of = await failure(at.stub.Generate(asking(**params)))

        assert told_of.code is Code.INVALID_ARGUMENT, told_of.message
        assert field_of(told_of) == field, told_of.message

    run(check)


@pytest.mark.parametrize(
    "asked",
    [
        asking(tokens=[10**6]),
        asking(tokens=[2**32 - 1]),
        pb.GenerateRequest(request_id="r", text="a", data_parallel_rank=5),
        pb.GenerateRequest(
            request_id="r", text="a", sampling_params=pb.SamplingParams(json_schema="{")
        ),
    ],
)
def test_whatever_else_vllm_refuses_is_invalid_and_not_the_servers_fault(
    asked: pb.GenerateRequest,
) -> None:
    async def check(at: ServedGrpc) -> None:
        told_of = await failure(at.stub.Generate(asked))

        assert told_of.code is Code.INVALID_ARGUMENT
        assert "BadRequest" in told_of.details

    run(check)


def test_overload_is_resource_exhausted_with_a_quota_and_a_time_to_come_back() -> None:
    async def check(at: ServedGrpc) -> None:
        at.core.free.clear()
        first = at.stub.Generate(asking("first"))
        while not at.core.added:
            await asyncio.sleep(0.005)

        told_of = await failure(at.stub.Generate(asking("second")))
        at.core.free.set()
        await told(first)

        assert (told_of.code, told_of.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_REQUESTS")
        (violation,) = told_of.details["QuotaFailure"].violations
        assert violation.subject == "engine"
        assert "RetryInfo" in told_of.details

    run(check, limits=AdmissionLimits(queue_requests=1))


def test_a_limit_of_a_key_is_told_as_that_keys_quota() -> None:
    key = ("[[key]]", 'name = "alice"', f'hash = "{hash_of("us-alice")}"', "concurrent = 1")

    async def check(at: ServedGrpc) -> None:
        metadata = [("authorization", "Bearer us-alice")]
        first = at.stub.Generate(asking("first", max_tokens=ENDLESS), metadata=metadata)
        await running(at, first)

        told_of = await failure(at.stub.Generate(asking("second"), metadata=metadata))
        first.cancel()

        assert (told_of.code, told_of.reason) == (Code.RESOURCE_EXHAUSTED, "CONCURRENT")
        (violation,) = told_of.details["QuotaFailure"].violations
        assert violation.subject == "key alice"

    with keys_in_a_file("\n".join(key)) as keys:
        run(check, keys=keys, step_s=STEP_S)


@pytest.mark.long
def test_a_drain_is_unavailable_for_new_work_and_lets_old_work_end() -> None:
    async def check(at: ServedGrpc) -> None:
        old = at.stub.Generate(asking("old", max_tokens=20))
        await running(at, old)
        at.admission.close(RefusalReason.DRAINING, "the server is about to end", 7.0)

        told_of = await failure(at.stub.Generate(asking("new")))

        assert (told_of.code, told_of.reason) == (Code.UNAVAILABLE, "DRAINING")
        assert told_of.details["RetryInfo"].retry_delay.seconds == 7
        assert (await told(old))[-1].complete.finish_reason == "length"

    run(check, step_s=STEP_S)


@pytest.mark.long
def test_batch_work_that_waits_is_told_of_the_drain_too() -> None:
    async def check(at: ServedGrpc) -> None:
        others = [at.stub.Generate(asking(f"r{i}", max_tokens=30)) for i in range(6)]
        for call in others:
            await running(at, call)
        waiting = at.stub.Generate(asking("b"), metadata=[("x-ultraserve-class", "batch")])
        failing = asyncio.ensure_future(failure(waiting))
        while at.admission.state().in_flight < 7:
            await asyncio.sleep(0.005)

        at.admission.close(RefusalReason.DRAINING, "the server is about to end", 7.0)

        told_of = await failing
        assert (told_of.code, told_of.reason) == (Code.UNAVAILABLE, "DRAINING")
        await asyncio.gather(*map(told, others))

    run(check, step_s=STEP_S)


def test_an_engine_that_dies_is_unavailable_for_those_inside_and_those_who_come() -> None:
    async def check() -> None:
        async with served_grpc_server(step_s=STEP_S) as at:
            call = at.stub.Generate(asking(max_tokens=ENDLESS))
            await running(at, call)

            at.core.die()

            for each in (call, at.stub.Generate(asking("late"))):
                told_of = await failure(each)
                assert (told_of.code, told_of.reason) == (Code.UNAVAILABLE, "ENGINE_GONE")
                assert "RetryInfo" in told_of.details
            assert await at.admission.empty(1.0)

    asyncio.run(check())


def test_what_fails_inside_is_told_without_a_word_of_the_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("/srv/secrets/key.pem")

    async def check(at: ServedGrpc) -> None:
        monkeypatch.setattr(at.engine.renderer, "process_for_engine", fail)

        told_of = await failure(at.stub.Generate(asking()))

        assert (told_of.code, told_of.reason) == (Code.INTERNAL, "INTERNAL")
        assert "secrets" not in told_of.message

    run(check)


def test_a_stranger_is_refused_before_a_byte_of_its_message_is_read() -> None:
    async def check(at: ServedGrpc) -> None:
        generate = at.channel.unary_stream(f"{ENGINE}Generate")  # takes raw bytes

        told_of = await failure(generate(b"\xff" * 100))

        assert (told_of.code, told_of.reason) == (Code.UNAUTHENTICATED, "UNAUTHENTICATED")

    run(check, keys=KeyRing(key_hashes=[hash_of("us-alice")]))


@pytest.mark.parametrize("method", ["Generate", "Abort", "GetModelInfo", "GetTokenizer"])
def test_bytes_that_are_no_message_are_invalid(method: str) -> None:
    async def check(at: ServedGrpc) -> None:
        streams = method in ("Generate", "GetTokenizer")
        make = at.channel.unary_stream if streams else at.channel.unary_unary

        told_of = await failure(make(ENGINE + method)(b"\xff" * 100))

        assert (told_of.code, told_of.reason) == (Code.INVALID_ARGUMENT, "UNREADABLE_MESSAGE")

    run(check)


def test_a_message_over_the_limit_is_refused_and_a_much_longer_one_by_grpc_itself() -> None:
    async def check(at: ServedGrpc) -> None:
        little = asking(tokens=[100_000] * 400)
        told_of = await failure(at.stub.Generate(little))
        assert (told_of.code, told_of.reason) == (Code.RESOURCE_EXHAUSTED, "MESSAGE_BYTES")

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await told(at.stub.Generate(asking(tokens=[100_000] * 100_000)))
        assert error.value.code() is Code.RESOURCE_EXHAUSTED

    run(check, body_bytes_max=1_000)


@pytest.mark.long
def test_a_message_that_grows_when_it_is_unpacked_is_measured_unpacked() -> None:
    grown = asking(tokens=[5] * 2_000_000)
    assert len(gzip.compress(grown.SerializeToString())) < 10_000

    async def check(at: ServedGrpc) -> None:
        call = at.stub.Generate(grown, compression=grpc.Compression.Gzip)

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await told(call)

        assert error.value.code() is Code.RESOURCE_EXHAUSTED

    run(check, body_bytes_max=10_000)


@pytest.mark.long
def test_a_call_that_sends_several_messages_ends_well_when_it_is_silent() -> None:
    async def check(at: ServedGrpc) -> None:
        method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        calls = []
        for _ in range(6):
            calls.append(at.channel.stream_stream(method)())
            await calls[-1].write(b"\x3a\x00")  # list_services
            assert b"ServerReflection" in await calls[-1].read()
        for call in calls:
            assert await asyncio.wait_for(call.read(), 10.0) is grpc.aio.EOF
            assert await call.code() is Code.OK
        generated = await told(at.stub.Generate(asking()))
        assert generated[-1].complete.finish_reason == "length"

    run(check)


def test_a_method_that_is_not_there_is_told_with_details() -> None:
    async def check(at: ServedGrpc) -> None:
        for method in ("/no.such.Service/Call", f"{ENGINE}NoSuchMethod"):
            told_of = await failure(at.channel.unary_unary(method)(b""))
            assert (told_of.code, told_of.reason) == (Code.UNIMPLEMENTED, "NOT_SERVED")

    run(check)


def test_embeddings_and_kv_events_are_not_served_and_say_so() -> None:
    async def check(at: ServedGrpc) -> None:
        embed = await failure(at.stub.Embed(pb.EmbedRequest(request_id="e")))
        events = await failure(at.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()))

        assert {embed.code, events.code} == {Code.UNIMPLEMENTED}

    run(check)


def test_calls_beside_generations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_guard, "CALLS_MAX", 8)
    for name in ("STREAM_WAIT_S", "STREAM_HASTE_S"):
        monkeypatch.setattr(message_turns, name, 60.0)  # none ends for the next one

    async def check(at: ServedGrpc) -> None:
        reflect = at.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        held = [reflect() for _ in range(8)]
        for call in held:
            await call.write(b"\x3a\x00")  # list_services

        async with asyncio.timeout(30.0):
            while True:  # until all have begun
                asked = at.stub.GetModelInfo(pb.GetModelInfoRequest())
                if await asked.code() is not Code.OK:
                    break
                await asyncio.sleep(0.05)
        told_of = await failure(asked)
        for call in held:
            call.cancel()

        assert (told_of.code, told_of.reason) == (Code.RESOURCE_EXHAUSTED, "CALLS")
        assert "RetryInfo" in told_of.details

    run(check)
