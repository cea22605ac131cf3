"""The load generator's clients before a whole server: three ways in, and the same tokens out."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from loadgen.clients.client import ClientSpec, Reply, RequestClient
from loadgen.clients.open_client import open_client
from loadgen.clients.question import open_session, served_model
from loadgen.clients.server_clock import read_server
from loadgen.clients.server_tokenizer import ServerTokenizer
from loadgen.records.request import Message, Request
from loadgen.records.server_reading import ServerReading
from loadgen.records.tokenizer import Tokenizer as LoadTokenizer
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started
from tests.e2e.tray import CONTEXT_TOKENS, DILATION, MODEL

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCHEMA = {
    "type": "object",
    "properties": {"count": {"enum": [1, 2, 3]}},
    "required": ["count"],
    "additionalProperties": False,
}
TEXT = "The old machine waits for the evening and says nothing of the river. " * 8


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(grpc_port: int) -> Iterator[ServerProcess]:
    arguments = (
        *("--model", MODEL, "--chips", "4", "--disable-uvicorn-access-log"),
        *("--max-num-batched-tokens", "512", "--max-model-len", str(CONTEXT_TOKENS)),
        *("--clock", f"dilated:{DILATION}", "--grpc-port", str(grpc_port)),
    )
    with started(ULTRASERVE, *arguments) as process:
        process.wait_ready()
        yield process


@pytest.fixture
def spec(server: ServerProcess, grpc_port: int) -> ClientSpec:
    return ClientSpec(
        api="completions",
        url=server.url,
        grpc_target=f"{HOST}:{grpc_port}",
        model=MODEL,
        timeout_s=120,
    )


def request(content: Any, *, output_tokens: int = 16, **given: Any) -> Request:
    return Request(
        request_id=0,
        traffic_class="a",
        session_id=0,
        turn=0,
        messages=(Message(role="user", content=content),),
        input_tokens=1,
        output_tokens=output_tokens,
        keep_reply=True,
        **given,
    )


def send(spec: ClientSpec, *requests: Request) -> list[Reply]:
    """Send one after another; none may fail."""

    async def play(client: RequestClient) -> list[Reply]:
        return [await client.send(each) for each in requests]

    async def opened() -> list[Reply]:
        async with open_client(spec, on_chunks=lambda _: None) as client:
            return await play(client)

    replies = asyncio.run(opened())
    assert [(reply.error, reply.message) for reply in replies] == [(None, "")] * len(replies)
    return replies


def asked(url: str, question: Callable[[LoadTokenizer], Awaitable[Any]]) -> Any:
    async def ask() -> Any:
        async with open_session() as session:
            model = await served_model(session, url, None)
            assert model.context_tokens == CONTEXT_TOKENS
            return await question(ServerTokenizer(session, url=url, model=model.name))

    return asyncio.run(ask())


def reading(url: str) -> ServerReading:
    async def ask() -> ServerReading:
        async with open_session() as session:
            return await read_server(session, url, must_answer=True)

    return asyncio.run(ask())


def test_http_and_grpc_give_the_same_tokens_for_the_same_prompt(
    spec: ClientSpec, tokenizer: Tokenizer
) -> None:
    ids = tuple(tokenizer.encode(TEXT).ids)
    (over_http,) = send(spec, request(ids))
    (over_grpc,) = send(replace(spec, api="grpc"), request(ids))

    assert over_http.token_ids is not None
    assert len(over_http.token_ids) == 16
    assert over_http.token_ids == over_grpc.token_ids
    for reply in (over_http, over_grpc):
        assert (reply.input_tokens, reply.output_tokens) == (len(ids), 16)
        assert 1 <= reply.chunk_ns.size <= 16


def test_a_chat_gives_the_tokens_of_its_templated_prompt(
    spec: ClientSpec, tokenizer: Tokenizer
) -> None:
    (chat,) = send(replace(spec, api="chat"), request("Why is the old machine so quiet?"))
    counted = asked(
        spec.url, lambda it: it.chat_tokens([("user", "Why is the old machine so quiet?")])
    )

    assert (chat.input_tokens, chat.output_tokens) == (counted, 16)
    assert chat.token_ids is not None
    assert len(chat.token_ids) == 16
    assert chat.text == tokenizer.decode(list(chat.token_ids), skip_special_tokens=True)


def test_a_shared_prefix_is_found_in_the_cache_over_every_api(
    spec: ClientSpec, tokenizer: Tokenizer
) -> None:
    prefix = tuple(tokenizer.encode("Some prefix of its own. " + TEXT).ids)
    first, second = send(spec, request((*prefix, 5)), request((*prefix, 7)))
    (third,) = send(replace(spec, api="grpc"), request((*prefix, 9)))
    text = "Another one, for a chat. " + TEXT
    fourth, fifth = send(replace(spec, api="chat"), request(text), request(text + "More."))

    for cold in (first, fourth):
        assert (cold.cached_tokens or 0) < len(prefix) // 2
    for warm in (second, third, fifth):
        assert (warm.cached_tokens or 0) >= len(prefix) // 2


@pytest.mark.parametrize("api", ["completions", "chat", "grpc"])
def test_a_schema_is_kept_to_over_every_api(
    spec: ClientSpec, tokenizer: Tokenizer, api: Any
) -> None:
    prompt: Any = "Count: " if api != "grpc" else tuple(tokenizer.encode("Count: ").ids)
    (reply,) = send(replace(spec, api=api), request(prompt, output_tokens=64, output_schema=SCHEMA))

    text = reply.text
    if text is None:
        text = tokenizer.decode(list(reply.token_ids or ()), skip_special_tokens=True)
    assert json.loads(text)["count"] in (1, 2, 3)


def test_the_server_s_tokenizer_is_the_model_s(spec: ClientSpec, tokenizer: Tokenizer) -> None:
    texts = [TEXT, "Über", "", "a b"]
    ids = asked(spec.url, lambda it: it.encode(texts))

    assert ids == [tuple(tokenizer.encode(text).ids) for text in texts]
    assert asked(spec.url, lambda it: it.decode(ids)) == texts
    assert asked(spec.url, lambda it: it.prompt_tokens(TEXT)) == len(ids[0])


def test_the_server_s_own_totals_grow_with_what_is_sent(spec: ClientSpec) -> None:
    before = reading(spec.url)
    send(spec, request(tuple(range(5, 105))), request(tuple(range(5, 105))))
    after = reading(spec.url)

    assert before.dilation == DILATION
    for name in ("queued_requests", "prefix_queries", "prefix_hits", "emulated_s"):
        grown = (getattr(after, name) or 0) - (getattr(before, name) or 0)
        assert grown > 0, name
    assert after.queue_s is not None
