"""What cannot be served is told so: a status, the API's shape, a reason, when to come back."""

import asyncio
import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from vllm.v1.request import RequestStatus

from tests.serving.server.gateway.http.served_http import MODEL, HttpServer
from tests.serving.server.gateway.http.test_http_gateway import CHAT, run, until

pytestmark = pytest.mark.long

PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/chat/completions", {"messages": CHAT}),
    ("/v1/responses", {"input": "hello"}),
]
COMPLETION = {"model": MODEL, "prompt": "hello", "max_tokens": 2}
BOTH = pytest.mark.parametrize("stream", [False, True])


def openai_shape(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    return error


@BOTH
def test_an_engine_that_is_gone_is_told_with_a_time_to_come_back(stream: bool) -> None:
    async def use(server: HttpServer) -> None:
        server.core.die()
        await until(lambda: server.engine.errored)
        for path, body in PATHS:
            answer = await server.http.post(path, json={"model": MODEL, "stream": stream, **body})
            assert openai_shape(answer, 503, "engine_gone")["message"] == "the engine is gone"
            assert int(answer.headers["retry-after"]) == 30
        messages = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error") as refused:
            await messages.messages.create(model=MODEL, messages=CHAT, max_tokens=3)
        assert refused.value.status_code == 503

    run(use)


@BOTH
@pytest.mark.parametrize(("path", "body"), PATHS)
def test_an_engine_that_goes_before_the_first_token_is_told_before_the_stream_begins(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    async def use(server: HttpServer) -> None:
        server.core.free.clear()
        asked = server.http.post(path, json={"model": MODEL, "stream": stream, **body})
        waiting = asyncio.ensure_future(asked)
        await until(lambda: server.core.requests)
        server.core.die()
        answer = await waiting
        openai_shape(answer, 503, "engine_gone")
        assert int(answer.headers["retry-after"]) == 30
        server.core.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        server.engine.output_processor.request_states.clear()  # vLLM leaves them to its end

    run(use)


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_an_engine_that_goes_in_the_midst_of_a_stream_is_its_last_event(
    path: str, body: dict[str, Any]
) -> None:
    asked = {"model": MODEL, "stream": True, "ignore_eos": True, **body}

    async def use(server: HttpServer) -> None:
        async with server.http.stream("POST", path, json=asked) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            while "delta" not in (line := await anext(lines)) and '"text"' not in line:
                pass
            server.core.die()
            rest = [line async for line in lines if line.startswith("data: {")]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert error["message"], rest
        if path == "/v1/responses":  # vLLM's own words elsewhere
            assert error["code"] == "engine_gone"
        server.core.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        server.engine.output_processor.request_states.clear()  # vLLM leaves them to its end

    run(use, step_s=0.01)


@BOTH
def test_a_request_that_no_rank_takes_is_told_so(stream: bool) -> None:
    async def use(server: HttpServer) -> None:
        server.core.scheduler.ranks_up[:] = False
        for path, body in PATHS:
            answer = await server.http.post(path, json={"model": MODEL, "stream": stream, **body})
            assert openai_shape(answer, 503, "no_rank_up")["message"] == "no rank is up"
            assert int(answer.headers["retry-after"]) >= 1

    run(use)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_that_vllm_would_begin_with_an_error_is_its_clients_error(stream: bool) -> None:
    """A token that is not in the vocabulary is found by the engine's client alone."""

    async def use(server: HttpServer) -> None:
        body = {"model": MODEL, "prompt": "hello", "stream": stream, "logit_bias": {"99999": 1.0}}
        answer = await server.http.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]

    run(use)


def test_unknown_paths_and_wrong_methods_have_the_apis_shape() -> None:
    async def use(server: HttpServer) -> None:
        for method in ("GET", "POST", "DELETE"):
            answer = await server.http.request(method, "/v1/files")
            assert "/v1/files" in openai_shape(answer, 404, "not_found")["message"]
        wrong = await server.http.get("/v1/chat/completions")
        error = openai_shape(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert "GET" in error["message"]
        assert "POST" in error["message"]
        anthropics = await server.http.get("/v1/messages")
        assert anthropics.json()["type"] == "error"
        with pytest.raises(openai.NotFoundError) as unknown:
            await server.client().files.list()
        assert unknown.value.code == "not_found"

    run(use)


def test_a_model_is_retrieved_by_its_name() -> None:
    async def use(server: HttpServer) -> None:
        client = server.client()
        (listed,) = (await client.models.list()).data
        card = await client.models.retrieve(MODEL)
        assert card.id == listed.id == MODEL
        assert card.to_dict().keys() == listed.to_dict().keys()
        with pytest.raises(openai.NotFoundError, match="small-moe") as unknown:
            await client.models.retrieve("gpt-7/turbo")
        assert unknown.value.code == "model_not_found"
        assert (await server.http.post(f"/v1/models/{MODEL}")).status_code in (404, 405)

    run(use)
