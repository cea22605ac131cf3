"""the HTTP gateway with vLLM's own app, a real engine's client and real connections."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import anthropic
import openai
import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.entry import Outcome
from serving.policy.admission.refusal import RefusalReason
from serving.policy.admission.work import Client, Work, WorkClass
from serving.server.gateway.ingress_limits import IngressLimits
from serving.server.gateway.kv_params import KvParams
from tests.serving.server.gateway.http.served_http import MODEL, HttpServer, http_server

pytestmark = pytest.mark.long

SECRET = "us-0123456789012345678901234567890123456789"
CHAT: list[Any] = [{"role": "user", "content": "hello"}]
EXACTLY = {"ignore_eos": True}
BATCH = {"x-ultraserve-class": "batch"}


def run(use: Callable[[HttpServer], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Serve, use, and see that nothing is left of it."""

    async def live() -> None:
        async with http_server(**settings) as server:
            await use(server)
            server.core.free.set()
            await server.is_empty()

    asyncio.run(asyncio.wait_for(live(), 60.0))


def left(server: HttpServer, work_class: WorkClass = WorkClass.INTERACTIVE) -> dict[str, int]:
    counts = server.admission.state().classes[work_class].left
    return {outcome.value: count for outcome, count in counts.items() if count}


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_an_admitted_request_is_answered_as_without_a_gateway() -> None:
    async def use(server: HttpServer) -> None:
        client = server.client()
        one = await client.completions.create(
            model=MODEL, prompt="hello", max_tokens=4, n=2, extra_body=EXACTLY
        )
        assert (len(one.choices), one.usage and one.usage.completion_tokens) == (2, 8)
        two = await client.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            max_tokens=8,
            extra_body=EXACTLY,
            stream=True,
            stream_options={"include_usage": True},
        )
        parts = [part async for part in two]
        assert parts[-1].usage
        assert parts[-1].usage.completion_tokens == 8
        three = await client.responses.create(
            model=MODEL, input="hello", max_output_tokens=3, extra_body=EXACTLY
        )
        assert three.usage
        assert three.usage.output_tokens == 3
        messages = anthropic.AsyncAnthropic(base_url=server.url, api_key="none")
        four = await messages.messages.create(model=MODEL, messages=CHAT, max_tokens=3)
        assert 1 <= four.usage.output_tokens <= 3
        assert (await client.models.list()).data[0].id == MODEL
        assert left(server) == {"finished": 4}
        made = server.core.added
        assert len(made) == 5

    run(use)


@pytest.mark.parametrize(("kv_params", "waiting"), [(KvParams.HEARD, 1), (KvParams.IGNORED, 41)])
def test_a_prompt_that_another_engine_has_computed_is_not_waited_for(
    kv_params: KvParams, waiting: int
) -> None:
    async def use(server: HttpServer) -> None:
        server.gateway.kv_params = kv_params
        server.core.free.clear()
        body = {"model": MODEL, "prompt": list(range(5, 46)), "max_tokens": 1}
        remote = {"kv_transfer_params": {"do_remote_prefill": True}}
        coming = asyncio.ensure_future(server.http.post("/v1/completions", json=body | remote))
        await until(lambda: server.core.requests)
        assert server.admission.state().classes[WorkClass.INTERACTIVE].waiting_tokens == waiting
        server.core.free.set()
        assert (await coming).is_success

    run(use)


def test_a_request_has_one_name_everywhere() -> None:
    async def use(server: HttpServer) -> None:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
        own = await server.http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
        assert (own.headers["x-request-id"], own.json()["id"]) == ("mine", "cmpl-mine")
        assert "cmpl-mine" in server.core.added[0]
        for hostile in ("x" * 129, "a b"):
            drawn = await server.http.post(
                "/v1/completions", json=body, headers={"x-request-id": hostile}
            )
            assert drawn.json()["id"] == f"cmpl-{drawn.headers['x-request-id']}"
            assert drawn.headers["x-request-id"] != hostile

    run(use)


def test_strangers_are_told_so_in_the_words_of_their_client() -> None:
    async def use(server: HttpServer) -> None:
        for key in ("wrong", "us-"):
            with pytest.raises(openai.AuthenticationError) as refused:
                await server.client(key).models.list()
            assert refused.value.code == "invalid_api_key"
        messages = anthropic.AsyncAnthropic(base_url=server.url, api_key="wrong")
        with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
            await messages.messages.create(model=MODEL, messages=CHAT, max_tokens=3)
        assert (await server.http.get("/metrics")).headers["www-authenticate"] == "Bearer"
        assert (await server.http.get("/livez")).status_code == 200
        known = server.client(SECRET)
        assert (await known.models.list()).data
        own = anthropic.AsyncAnthropic(base_url=server.url, api_key=SECRET)
        assert (await own.messages.create(model=MODEL, messages=CHAT, max_tokens=1)).content

    run(use, keys=KeyRing(key_hashes=(hash_of(SECRET),)))


def test_a_client_that_is_told_to_come_back_comes_back_and_is_served() -> None:
    async def use(server: HttpServer) -> None:
        server.core.free.clear()
        first = asyncio.ensure_future(
            server.client().completions.create(model=MODEL, prompt="a", max_tokens=1)
        )
        await until(lambda: server.core.requests)
        with pytest.raises(openai.RateLimitError) as refused:
            await server.client(max_retries=0).completions.create(model=MODEL, prompt="b")
        assert refused.value.code == RefusalReason.QUEUE_REQUESTS
        wait_s = float(refused.value.response.headers["retry-after-ms"]) / 1e3
        assert int(refused.value.response.headers["retry-after"]) >= wait_s > 0
        patient = server.client(max_retries=20).completions.create(
            model=MODEL, prompt="c", max_tokens=1
        )
        coming = asyncio.ensure_future(patient)
        await until(lambda: refused_by_reason(server, RefusalReason.QUEUE_REQUESTS) >= 2)
        server.core.free.set()
        assert (await first).choices
        assert (await coming).choices
        assert left(server) == {"finished": 2}

    run(use, limits=AdmissionLimits(queue_requests=1))


def refused_by_reason(server: HttpServer, reason: RefusalReason) -> int:
    return server.admission.state().classes[WorkClass.INTERACTIVE].refused.get(reason, 0)


def small_work(work_class: WorkClass) -> Work:
    return Work(
        client=Client(), work_class=work_class, sequences=1, prompt_tokens=1, new_tokens_max=1
    )


def test_who_is_refused_for_all_classes_is_told_the_reason_of_its_own() -> None:
    async def use(server: HttpServer) -> None:
        inside = [server.admission.enter(small_work(WorkClass.INTERACTIVE))]
        while server.admission.would_refuse(Client(), WorkClass.BATCH) is None:
            inside.append(server.admission.enter(small_work(WorkClass.BATCH)))

        answer = await server.http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})

        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == RefusalReason.QUEUE_REQUESTS
        assert refused_by_reason(server, RefusalReason.QUEUE_REQUESTS) == 1
        for permit in inside:
            permit.leave(Outcome.FINISHED)

    run(use, limits=AdmissionLimits(queue_requests=1, batch_queue_requests=1))


def test_a_response_is_not_made_behind_its_client_s_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")

    async def use(server: HttpServer) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await server.client().responses.create(model=MODEL, input="hello", background=True)
        assert refused.value.param == "background"
        assert server.core.added == []
        kept = await server.client().responses.create(
            model=MODEL, input="hello", max_output_tokens=2, background=False, store=True
        )
        assert kept.status in ("completed", "incomplete")

    run(use)


def test_a_closed_door_answers_before_it_reads() -> None:
    async def use(server: HttpServer) -> None:
        server.admission.close(RefusalReason.DRAINING, "the server ends", 3.0)
        answer = await server.http.post("/v1/completions", content=b"x" * 60_000)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
        assert answer.json()["error"]["code"] == "draining"
        ready = await server.http.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "the server ends\n")
        assert (await server.http.get("/v1/models")).status_code == 200
        server.admission.open()
        assert (await server.client().completions.create(model=MODEL, prompt="b")).choices

    run(use)


def test_a_client_that_goes_takes_its_request_with_it() -> None:
    async def use(server: HttpServer) -> None:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 400, "ignore_eos": True}
        for stream in (False, True):
            asked = server.http.post("/v1/completions", json=body | {"stream": stream})
            going = asyncio.ensure_future(asked)
            await until(lambda: server.core.requests)
            going.cancel()
            await until(lambda: not server.core.requests)
        await until(lambda: left(server) == {"aborted": 2})

    run(use, step_s=0.01)


def test_batch_work_that_waits_at_the_door_can_go_and_be_sent_away() -> None:
    async def use(server: HttpServer) -> None:
        server.core.free.clear()
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "stream": True}
        running = [
            asyncio.ensure_future(server.http.post("/v1/completions", json=body, headers=BATCH))
            for _ in range(12)
        ]
        batch = server.admission.state().classes[WorkClass.BATCH]
        await until(lambda: server.admission.state().classes[WorkClass.BATCH].entered == 12)
        assert server.admission.state().classes[WorkClass.BATCH].queued > 0, batch
        running.pop().cancel()  # the last one waits
        await until(lambda: left(server, WorkClass.BATCH) == {"aborted": 1})
        server.admission.close(RefusalReason.DRAINING, "the server ends", 3.0)
        server.core.free.set()
        answers = await asyncio.gather(*running)
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 503}
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert refused.headers["retry-after"] == "3"
        assert refused.json()["error"]["code"] == "draining"
        counts = left(server, WorkClass.BATCH)
        assert counts["finished"] == statuses.count(200)
        assert counts["refused"] == statuses.count(503)

    run(use)


def test_a_request_that_takes_too_long_ends_before_or_in_its_stream() -> None:
    async def use(server: HttpServer) -> None:
        server.core.free.clear()
        body = {"model": MODEL, "prompt": "a", "max_tokens": 400, "ignore_eos": True}
        late = await server.http.post("/v1/completions", json=body)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "request_wall_time")
        server.core.free.set()
        streamed = await server.http.post("/v1/completions", json=body | {"stream": True})
        events = [line for line in streamed.text.split("\n\n") if line]
        assert streamed.status_code == 200
        assert len(events) > 2
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "request_wall_time"
        await until(lambda: left(server) == {"aborted": 2})

    run(use, request_wall_s_max=0.3, step_s=0.01)


def test_a_body_that_is_too_large_is_told_so_to_a_client_that_sends_all_of_it() -> None:
    async def use(server: HttpServer) -> None:
        client = server.client(max_retries=0)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.completions.create(model=MODEL, prompt="x" * 4_000_000)
        assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")

        async def chunks() -> Any:
            for _ in range(200):
                yield b"x" * 1_000

        chunked = await server.http.post("/v1/completions", content=chunks())
        assert chunked.status_code == 413

    run(use)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def use(server: HttpServer) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 5.0)  # to its end: the connection is closed
        assert answer.startswith(b"HTTP/1.1 408 ")
        writer.close()

    run(use, ingress_limits=IngressLimits(body_wait_s=0.05))


def test_what_is_not_served_says_so() -> None:
    async def use(server: HttpServer) -> None:
        for path in ("/sleep", "/scale_elastic_ep/", "/v1/load_lora_adapter"):
            refused = await server.http.post(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                403,
                "not_served_here",
            )
        missing = await server.http.post("/v1/systemone", json={"state": 1, "questions": {}})
        assert missing.status_code == 404
        described = (await server.http.get("/openapi.json")).json()["paths"]
        assert "/v1/systemone" not in described
        assert "/scale_elastic_ep" not in described

    run(use)


UNREADABLE: list[tuple[str, Any, int, Any]] = [
    ("/v1/completions", b"\xff{}", 400, "invalid_json"),
    ("/tokenize", b'{"prompt": NaN}', 400, "invalid_json"),
    ("/v1/completions", {"prompt": "a" * 9_000}, 400, 400),
    ("/v1/completions", {"prompt": [-5]}, 400, 400),
    ("/v1/completions", {"prompt": "a", "n": 0}, 400, 400),
    ("/v1/completions", {"prompt": "a", "model": "another"}, 404, 404),
    ("/v1/chat/completions", {"messages": CHAT, "watermarking": True}, 400, 400),
    (
        "/v1/responses",
        {"input": [{"type": "message", "role": "user", "content": [[1]]}]},
        400,
        None,
    ),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "id": "a",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [],
                }
            ]
        },
        400,
        "malformed_request",
    ),
]


def test_requests_that_cannot_be_are_the_clients_errors() -> None:
    async def use(server: HttpServer) -> None:
        for path, body, status, code in UNREADABLE:
            given = (
                body if isinstance(body, bytes) else json.dumps({"model": MODEL} | body).encode()
            )
            answer = await server.http.post(
                path, content=given, headers={"content-type": "application/json"}
            )
            assert answer.status_code == status, (body, answer.text)
            assert code in (None, answer.json()["error"]["code"]), (body, answer.text)
        assert set(left(server)) == {"failed"}

    run(use)


def test_text_that_no_context_can_have_is_refused_before_it_is_read() -> None:
    """On every path that would make tokens of it, also where it would be cut or only counted."""
    text = "word " * 220_000
    asked: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": text, "truncate_prompt_tokens": 5},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/tokenize": {"prompt": text},
    }

    async def use(server: HttpServer) -> None:
        for path, body in asked.items():
            answer = await server.http.post(path, json={"model": MODEL} | body)
            assert answer.status_code == 400, (path, answer.text)
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", next(iter(body)))
        assert left(server) == {}

    run(use, body_bytes_max=2**21)


def test_a_connection_that_is_cut_in_its_headers_or_body_leaves_nothing() -> None:
    async def use(server: HttpServer) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        for text in (
            b"POST /v1/compl",
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{",
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{",
        ):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(text)
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        assert server.bodies.account.keyed_bytes == 0
        assert left(server) == {}

    run(use)
