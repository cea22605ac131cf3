"""Generate from end to end: what is answered, and that nothing of a request outlives its call."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.entry import Outcome
from serving.policy.admission.work import Client, Work, WorkClass
from serving.server.connections.grpc_relay import NamedConnections
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.grpc.generate_request import asked_of
from serving.server.gateway.grpc.grpc_guard import CallLimits, GrpcGuard
from serving.server.gateway.grpc.grpc_server import STREAMS_MAX, call_limits, server_options
from serving.server.gateway.ingress_account import IngressAccount
from tests.serving.server.gateway.grpc.served_grpc import (
    Ready,
    ServedGrpc,
    asking,
    failure,
    served_grpc_server,
    told,
)
from tests.serving.server.gateway.small_async_llm import SEATS

ENDLESS = 400
"""Tokens: more than any of these tests waits for."""

AT_ONCE_S = 1.0
"""Wall seconds; a request that nobody ends would take ENDLESS steps of STEP_S."""

STEP_S = 0.02


def run(check: Callable[[ServedGrpc], Awaitable[None]], **admission: Any) -> None:
    """Open a gateway, check, and see that it is empty in the end."""

    async def opened() -> None:
        async with served_grpc_server(**admission) as at:
            await check(at)
            await asyncio.wait_for(at.is_empty(), 10.0)

    asyncio.run(opened())


def left(at: ServedGrpc, work_class: WorkClass = WorkClass.INTERACTIVE) -> dict[Outcome, int]:
    counts = at.admission.state().classes[work_class].left
    return {outcome: count for outcome, count in counts.items() if count}


def test_an_answer_is_streamed_token_by_token_and_its_end_is_told() -> None:
    async def check(at: ServedGrpc) -> None:
        answers = await told(at.stub.Generate(asking(max_tokens=4)))

        kinds = [each.WhichOneof("response") for each in answers]
        assert kinds[-1] == "complete"
        assert kinds.count("complete") == 1
        chunks = [each.chunk for each in answers[:-1]]
        assert sum(len(chunk.token_ids) for chunk in chunks) == 4
        assert answers[-1].complete.finish_reason == "length"
        assert answers[-1].complete.prompt_tokens == 3
        assert left(at) == {Outcome.FINISHED: 1}

    run(check)


def test_two_answers_without_a_stream_come_whole_and_numbered() -> None:
    async def check(at: ServedGrpc) -> None:
        answers = await told(at.stub.Generate(asking(stream=False, max_tokens=5, n=2)))

        assert sorted(each.complete.index for each in answers) == [0, 1]
        assert [len(each.complete.output_ids) for each in answers] == [5, 5]
        assert left(at) == {Outcome.FINISHED: 1}

    run(check)


def test_text_is_tokenized_and_answered() -> None:
    async def check(at: ServedGrpc) -> None:
        asked = pb.GenerateRequest(
            request_id="t", text="hello there", sampling_params=pb.SamplingParams(max_tokens=1)
        )

        (answer,) = await told(at.stub.Generate(asked))

        tokenizer = at.engine.get_tokenizer()
        assert answer.complete.prompt_tokens == len(tokenizer.encode("hello there"))

    run(check)


@pytest.mark.long
def test_many_calls_at_once_are_all_answered_by_two_ranks() -> None:
    async def check(at: ServedGrpc) -> None:
        calls = [told(at.stub.Generate(asking(f"r{i}", max_tokens=9))) for i in range(40)]

        answers = await asyncio.gather(*calls)

        assert {each[-1].complete.finish_reason for each in answers} == {"length"}
        assert left(at) == {Outcome.FINISHED: 40}

    run(check, ranks=2)


async def running(at: ServedGrpc, call: Any) -> None:
    """Until the first tokens of a call are there."""
    await call.read()
    assert at.core.used_blocks > 0


async def until_free(at: ServedGrpc) -> None:
    """The KV is free at once; no step is needed for it."""
    begin_s = time.monotonic()
    while at.core.used_blocks:
        assert time.monotonic() - begin_s < AT_ONCE_S
        await asyncio.sleep(0.005)


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_that_is_over_ends_the_request_and_frees_its_kv_at_once(stream: bool) -> None:
    async def check(at: ServedGrpc) -> None:
        asked = asking(stream=stream, max_tokens=ENDLESS)

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await told(at.stub.Generate(asked, timeout=10 * STEP_S))

        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until_free(at)
        assert len(at.core.aborted) == 1
        assert await at.admission.empty(AT_ONCE_S)
        assert left(at) == {Outcome.ABORTED: 1}

    run(check, step_s=STEP_S)


def test_a_client_that_goes_away_frees_all_of_its_sequences_at_once() -> None:
    async def check(at: ServedGrpc) -> None:
        call = at.stub.Generate(asking(max_tokens=ENDLESS, n=3))
        await running(at, call)

        call.cancel()

        await until_free(at)
        assert len(set(at.core.aborted)) == 3
        assert await at.admission.empty(AT_ONCE_S)
        assert left(at) == {Outcome.ABORTED: 1}

    run(check, step_s=STEP_S)


def test_a_request_is_ended_by_its_name_even_when_its_generator_does_not_see_to_it() -> None:
    async def check(at: ServedGrpc) -> None:
        async def careless(prompt: Any, sampling_params: Any, request_id: str, **rest: Any) -> Any:
            outputs = await at.engine.add_request(request_id, prompt, sampling_params, **rest)
            while True:
                yield await outputs.get()

        at.engine.generate = careless
        call = at.stub.Generate(asking(max_tokens=ENDLESS))
        await running(at, call)

        call.cancel()

        await until_free(at)

    run(check, step_s=STEP_S)


def test_a_connection_that_breaks_frees_what_came_over_it_at_once() -> None:
    async def check(at: ServedGrpc) -> None:
        calls = [at.stub.Generate(asking(f"r{i}", max_tokens=ENDLESS)) for i in range(3)]
        for call in calls:
            await running(at, call)

        await at.channel.close(None)

        await until_free(at)
        assert len(at.core.aborted) == 3

    run(check, step_s=STEP_S)


@pytest.mark.long
def test_a_request_takes_as_long_as_the_server_lets_it() -> None:
    async def check(at: ServedGrpc) -> None:
        told_of = await failure(at.stub.Generate(asking(max_tokens=ENDLESS)))

        assert told_of.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert told_of.reason == "TIME_LIMIT"
        await until_free(at)
        assert left(at) == {Outcome.ABORTED: 1}

    run(check, step_s=STEP_S, request_wall_s_max=10 * STEP_S)


def test_an_abort_ends_the_callers_own_request_and_nobody_elses() -> None:
    keys = KeyRing(key_hashes=[hash_of("us-alice"), hash_of("us-bob")])
    alice, bob = [("x-api-key", "us-alice")], [("x-api-key", "us-bob")]

    async def check(at: ServedGrpc) -> None:
        hers = at.stub.Generate(asking("same", max_tokens=ENDLESS), metadata=alice)
        his = at.stub.Generate(asking("same", max_tokens=ENDLESS), metadata=bob)
        await running(at, hers)
        await running(at, his)

        await at.stub.Abort(pb.AbortRequest(request_ids=["same", "other"]), metadata=bob)

        assert (await told(his))[-1].complete.finish_reason == "abort"
        assert left(at) == {Outcome.ABORTED: 1}
        await hers.read()
        hers.cancel()

    run(check, step_s=STEP_S, keys=keys)


def test_an_id_that_is_in_use_is_refused_until_its_request_has_ended() -> None:
    async def check(at: ServedGrpc) -> None:
        first = at.stub.Generate(asking("same", max_tokens=ENDLESS))
        await running(at, first)

        told_of = await failure(at.stub.Generate(asking("same")))
        await at.stub.Abort(pb.AbortRequest(request_ids=["same"]))
        await told(first)

        assert told_of.code is grpc.StatusCode.ALREADY_EXISTS
        assert told_of.reason == "REQUEST_ID_IN_USE"
        assert (await told(at.stub.Generate(asking("same"))))[-1].complete.finish_reason == "length"

    run(check, step_s=STEP_S)


def test_batch_work_says_so_and_runs_when_there_is_room() -> None:
    async def check(at: ServedGrpc) -> None:
        batch = [("x-ultraserve-class", "batch")]

        await told(at.stub.Generate(asking("night"), metadata=batch))

        assert left(at, WorkClass.BATCH) == {Outcome.FINISHED: 1}
        assert left(at) == {}

    run(check)


def test_batch_work_that_waits_for_its_turn_is_gone_with_its_client() -> None:
    async def check(at: ServedGrpc) -> None:
        batch = [("x-ultraserve-class", "batch")]
        others = [at.stub.Generate(asking(f"r{i}", max_tokens=ENDLESS)) for i in range(6)]
        for call in others:
            await running(at, call)
        waiting = at.stub.Generate(asking("night"), metadata=batch)
        while not at.admission.state().classes[WorkClass.BATCH].queued:
            await asyncio.sleep(0.005)
        assert len(at.core.added) == 6

        waiting.cancel()

        begin_s = time.monotonic()
        while at.admission.state().classes[WorkClass.BATCH].in_flight:
            assert time.monotonic() - begin_s < AT_ONCE_S
            await asyncio.sleep(0.005)
        assert left(at, WorkClass.BATCH) == {Outcome.ABORTED: 1}
        for call in others:
            call.cancel()

    run(check, step_s=STEP_S)


@pytest.mark.long
def test_the_time_of_batch_work_begins_when_the_engine_may_have_it() -> None:
    async def check(at: ServedGrpc) -> None:
        others = Work(
            client=Client(),
            work_class=WorkClass.INTERACTIVE,
            sequences=SEATS,
            prompt_tokens=SEATS,
            new_tokens_max=SEATS,
        )
        with at.admission.enter(others):
            call = at.stub.Generate(asking("late"), metadata=[("x-ultraserve-class", "batch")])
            answers = asyncio.ensure_future(told(call))
            await asyncio.sleep(1.0)  # twice what a request may take
            assert not at.core.added

        assert (await answers)[-1].complete.finish_reason == "length"

    run(check, request_wall_s_max=0.5)


def test_a_connection_outlives_the_wait_of_the_batch_work_on_it() -> None:
    limits = CallLimits(
        message_bytes_max=1, wall_s_max=60.0, queue_wall_s_max=600.0, context_tokens=1
    )

    options = dict(server_options(limits))

    assert options["grpc.max_concurrent_streams"] == STREAMS_MAX
    assert options["grpc.max_connection_age_ms"] == 60_000
    assert options["grpc.max_connection_age_grace_ms"] == 660_000


@pytest.mark.parametrize(
    ("clock", "wait_s"), [("real", 100.0), ("dilated:20", 2_000.0), ("auto", 1_000_000.0)]
)
def test_the_wait_of_batch_work_is_bounded_at_every_pace_of_the_clock(
    clock: str, wait_s: float
) -> None:
    engine = SimpleNamespace(
        vllm_config=SimpleNamespace(
            additional_config={"ultraserve": {"clock": clock}}, kv_transfer_config=None
        ),
        model_config=SimpleNamespace(max_model_len=512),
    )
    settings = GatewaySettings(limits=AdmissionLimits(batch_wait_s=100.0))

    assert call_limits(engine, settings).queue_wall_s_max == wait_s


def test_a_timeout_inside_of_a_call_is_not_taken_for_the_end_of_its_time() -> None:
    async def inner(message: Any, context: Any) -> Any:
        raise TimeoutError("of something else")
        yield

    async def check(at: ServedGrpc) -> None:
        limits = CallLimits(
            message_bytes_max=1, wall_s_max=60.0, queue_wall_s_max=0.0, context_tokens=512
        )
        guard = GrpcGuard(
            at.engine,
            admission=at.admission,
            keys=KeyRing(),
            limits=limits,
            readiness=Ready(),  # type: ignore[arg-type]
            ingress=IngressAccount(),
            names=NamedConnections(),
        )
        asked = asked_of(asking(), Client(), WorkClass.INTERACTIVE, context_tokens=512)
        context: Any = SimpleNamespace(write=None)
        with pytest.raises(TimeoutError, match="something else"):
            await guard._answered(inner, asked, context, SimpleNamespace())  # type: ignore[arg-type]

    run(check)
