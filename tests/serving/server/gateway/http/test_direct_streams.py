"""Streams whose middle is written past vLLM's app are byte for byte those that the app makes."""

import asyncio
import copy
import json
import re
from asyncio.selector_events import _SelectorSocketTransport
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.completion.protocol import (
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
)
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates

from serving.plugin.direct_streams import ChunkTemplate, join_streams
from serving.server.gateway.http.written_body import WrittenBody
from tests.serving.server.gateway.http.served_http import MODEL, HttpServer, http_server

TOKENS: Final = 24
PLAIN: Final[dict[str, dict[str, Any]]] = {
    "tokens": {"prompt": [5, 6, 7]},
    "text": {"prompt": "the sea"},
    "usage": {"prompt": "the sea", "stream_options": {"include_usage": True}},
    "drawn": {"prompt": "the sea", "temperature": 0.9, "seed": 3},
    "chat": {"messages": [{"role": "user", "content": "the sea"}]},
    "chat with usage": {
        "messages": [{"role": "user", "content": "the sea"}],
        "stream_options": {"include_usage": True},
    },
}
OTHERS: Final[dict[str, dict[str, Any]]] = {
    "two answers": {"prompt": "the sea", "n": 2},
    "two prompts": {"prompt": ["the sea", "a hill"]},
    "log-probabilities": {"prompt": "the sea", "logprobs": 1},
    "stop strings": {"prompt": "the sea", "stop": ["zzz"]},
    "echo": {"prompt": "the sea", "echo": True},
    "token ids": {"prompt": "the sea", "return_token_ids": True},
    "usage at each": {
        "prompt": "the sea",
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "one token": {"prompt": "the sea", "max_tokens": 1},
    "chat, two answers": {"messages": [{"role": "user", "content": "the sea"}], "n": 2},
}


@pytest.fixture(autouse=True)
def same_tokens() -> Iterator[None]:
    """Names of sequences follow from their requests', and so do the synthetic tokens."""

    def assign(self: InputProcessor, request: Any) -> None:
        del self
        request.external_req_id = request.request_id
        request.request_id = f"{request.external_req_id}-0"

    with mock.patch.object(InputProcessor, "assign_request_id", assign):
        yield


Written = list[tuple[WrittenBody, bytes]]


@contextmanager
def recorded() -> Iterator[Written]:
    """The chunks that are written directly."""
    written: Written = []
    write = WrittenBody.write

    def noted(body: WrittenBody, chunk: bytes) -> None:
        written.append((body, chunk))
        write(body, chunk)

    with mock.patch.object(WrittenBody, "write", noted):
        yield written


async def streams(asked: dict[str, dict[str, Any]], *, direct: bool) -> dict[str, bytes]:
    """The answers, one after the other, without their time."""
    answers = {}
    async with http_server(direct=direct, step_s=0.001) as server:
        for name, body in asked.items():
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            whole = {"model": MODEL, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
            answer = await server.http.post(
                path, json=whole | body, headers={"x-request-id": name.replace(" ", "-")}
            )
            assert answer.status_code == 200, answer.text
            answers[name] = re.sub(rb'"created":\d+', b'"created":0', answer.content)
        await server.is_empty()
    return answers


def compared(asked: dict[str, dict[str, Any]]) -> int:
    """Compare the streams of both ways; returns the number of chunks written directly."""
    with recorded() as written:
        plain = asyncio.run(streams(asked, direct=False))
        assert not written
        direct = asyncio.run(streams(asked, direct=True))
    for name, stream in plain.items():  # vLLM merges two prompts' streams in any order
        events = sorted if name == "two prompts" else list
        assert events(direct[name].split(b"\n\n")) == events(stream.split(b"\n\n"))
        assert stream.endswith(b"data: [DONE]\n\n")
    return len(written)


@pytest.mark.long
def test_plain_streams_are_as_vllm_makes_them() -> None:
    # The first token, with which the template comes, and the last go vLLM's way; in chats those
    # without text as well.
    assert compared(PLAIN) >= len(PLAIN) * (TOKENS - 6)


@pytest.mark.long
def test_streams_with_more_than_text_go_vllms_way() -> None:
    assert compared(OTHERS) == 0


@st.composite
def asked_streams(draw: st.DrawFn) -> dict[str, Any]:
    """A completion or a chat with any of the options that a stream may have."""
    options: dict[str, st.SearchStrategy[Any]] = {
        "max_tokens": st.integers(1, 2 * TOKENS),
        "n": st.integers(1, 2),
        "temperature": st.sampled_from([0.0, 0.7]),
        "seed": st.just(5),
        "stop": st.sampled_from([[], ["e"], ["zzz"]]),
        "ignore_eos": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "spaces_between_special_tokens": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "min_tokens": st.just(1),
        "return_token_ids": st.booleans(),
        "stream_options": st.fixed_dictionaries(
            {"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}
        ),
    }
    is_chat = draw(st.booleans())
    more: dict[str, st.SearchStrategy[Any]] = (
        {"logprobs": st.booleans(), "tool_choice": st.just("none")}
        if is_chat
        else {"logprobs": st.none() | st.integers(0, 2), "echo": st.booleans()}
    )
    chosen = draw(st.fixed_dictionaries({}, optional=options | more))
    chosen.setdefault("seed", 5)
    if chosen.get("n") == 2:  # of one that is not drawn there are no two
        chosen["temperature"] = 0.7
    prompt = {"messages": [{"role": "user", "content": "the sea"}]} if is_chat else {"prompt": "a"}
    return prompt | chosen


@pytest.mark.slow
@settings(deadline=None, max_examples=3, phases=[Phase.generate])
@given(asked=st.lists(asked_streams(), min_size=6, max_size=12))
def test_streams_of_any_options_are_as_vllm_makes_them(asked: list[dict[str, Any]]) -> None:
    compared({f"stream {number}": each for number, each in enumerate(asked)})


BODY: Final = {"model": MODEL, "prompt": "a", "stream": True, "ignore_eos": True}


def run(use: Callable[[HttpServer, Written], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Serve, use, and see that nothing is left of it."""

    async def live() -> None:
        with recorded() as written:
            async with http_server(step_s=0.002, **settings) as server:
                await use(server, written)
                await server.is_empty()

    asyncio.run(asyncio.wait_for(live(), 60.0))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def events_of(stream: str) -> list[dict[str, Any]]:
    """The events of a stream but for its last, which has no JSON."""
    *events, last = [event.removeprefix("data: ") for event in stream.split("\n\n") if event]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.long
def test_a_response_names_weights_that_change_within_its_stream() -> None:
    async def use(server: HttpServer, written: Written) -> None:
        server.core.weights = ("v1-a",)
        asked = server.http.post("/v1/completions", json=BODY | {"max_tokens": 60})
        going = asyncio.ensure_future(asked)
        await until(lambda: len(written) > 20)
        server.core.weights = ("v2-b",)
        events = events_of((await going).text)
        assert events[-1]["system_fingerprint"].endswith("-v1-a+v2-b")
        assert len(events) == 60
        assert len(written) > 50, "direct again"

    run(use)


@pytest.mark.long
def test_a_step_counts_what_vllm_s_own_statistics_count() -> None:
    async def use(server: HttpServer, written: Written) -> None:
        processor = server.engine.output_processor
        process = processor.process_outputs
        steps = 0

        def processed(outputs: list[Any], timestamp: float, stats: Any, **named: Any) -> Any:
            nonlocal steps
            theirs = IterationStats()
            theirs.iteration_timestamp = stats.iteration_timestamp
            states = {
                each.request_id: processor.request_states[each.request_id] for each in outputs
            }
            times = {name: copy.deepcopy(state.stats) for name, state in states.items()}
            for output in outputs:
                name = output.request_id
                theirs.update_from_output(
                    output, timestamp, states[name].is_prefilling, times[name], lora, None
                )
            done = process(outputs, timestamp, stats, **named)
            assert stats.num_generation_tokens == theirs.num_generation_tokens
            assert stats.time_to_first_tokens_iter == theirs.time_to_first_tokens_iter
            between_s = theirs.inter_token_latencies_iter
            assert sorted(stats.inter_token_latencies_iter) == sorted(between_s)
            assert {name: state.stats for name, state in states.items()} == times
            steps += 1
            return done

        lora = LoRARequestStates(log_stats=False)
        processor.process_outputs = processed
        body = {"model": MODEL, "stream": True, "ignore_eos": True, "max_tokens": 30}
        asked = [
            server.http.post("/v1/completions", json=body | {"prompt": "a" * (1 + length)})
            for length in range(4)
        ]
        for answer in await asyncio.gather(*asked):
            assert len(events_of(answer.text)) == 30
        assert steps >= 30
        assert len(written) > 80

    run(use)


@pytest.mark.long
def test_a_reader_that_is_late_gets_every_token_and_the_count_is_right() -> None:
    async def use(server: HttpServer, written: Written) -> None:
        tokens = 400
        body = BODY | {"max_tokens": tokens, "stream_options": {"include_usage": True}}
        async with server.http.stream("POST", "/v1/completions", json=body) as answer:
            await until(lambda: len(written) > 10)
            flow = written[0][0]._cycle.flow
            flow.pause_writing()  # as a full socket does
            before = len(written)
            await asyncio.sleep(0.1)
            assert len(written) == before
            flow.resume_writing()
            text = "".join([part async for part in answer.aiter_text()])
        assert len(written) > before + 10, "direct again"
        events = events_of(text)
        assert events[-1]["usage"]["completion_tokens"] == tokens
        assert len(events) < tokens  # those of the pause are one

    run(use)


@pytest.mark.long
def test_a_step_s_chunks_of_one_socket_are_one_write() -> None:
    """Those of four sequences of a request, which go vLLM's way."""
    sent: list[bytes] = []
    send = _SelectorSocketTransport.write

    def noted(transport: Any, data: bytes) -> None:
        sent.append(bytes(data))
        send(transport, data)

    async def use(server: HttpServer, written: Written) -> None:
        for several in ({"n": 4, "temperature": 0.7}, {"prompt": ["a", "b", "c", "d"]}):
            sent.clear()
            with mock.patch.object(_SelectorSocketTransport, "write", noted):
                answer = await server.http.post(
                    "/v1/completions", json=BODY | several | {"max_tokens": TOKENS}
                )
            assert len(events_of(answer.text)) == 4 * TOKENS
            # The first chunk goes with the response's beginning, and the last have an end behind.
            assert sum(b"data: {" in each for each in sent) <= TOKENS + 4
        assert not written

    run(use)


@pytest.mark.long
def test_a_request_that_ends_early_in_its_direct_stream_leaves_nothing() -> None:
    async def use(server: HttpServer, written: Written) -> None:
        body = BODY | {"max_tokens": 400}
        gone = asyncio.ensure_future(server.http.post("/v1/completions", json=body))
        await until(lambda: len(written) > 5)
        gone.cancel()
        await until(lambda: not server.core.requests)
        late = await server.http.post("/v1/completions", json=body)
        last = late.text.split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_wall_time"

    run(use, request_wall_s_max=0.4)


@pytest.mark.long
@given(text=st.text(), before=st.text(), after=st.text())
def test_a_template_has_the_text_as_vllm_s_json_has_it(text: str, before: str, after: str) -> None:
    def chunk(text: str) -> str:
        choice = CompletionResponseStreamChoice(index=0, text=text)
        made = CompletionStreamResponse(id=before, created=1, model=after, choices=[choice])
        return f"data: {made.model_dump_json(exclude_unset=True)}\n\n"

    template = ChunkTemplate.of(chunk("a"), "text", "a")
    assert template is not None
    assert template.chunk(text) == chunk(text).encode()


def test_every_character_is_escaped_as_in_vllm_s_json() -> None:
    whole = "".join(chr(code) for code in range(0x11000) if not 0xD800 <= code < 0xE000)
    made = CompletionResponseStreamChoice(index=0, text=whole).model_dump_json(exclude_unset=True)
    assert ChunkTemplate(b'{"index":0,"text":', b"}").chunk(whole) == made.encode()


class ReadsBodies:
    """A middleware that does not say that it passes bodies."""


@pytest.mark.parametrize(
    ("middleware", "keep_alive_s"), [((ReadsBodies,), 0), ((), 5)], ids=["middleware", "keep alive"]
)
def test_streams_that_something_else_reads_go_vllms_way(
    middleware: tuple[type, ...], keep_alive_s: int
) -> None:
    names = [f"{each.__module__}.{each.__qualname__}" for each in middleware]
    serving = SimpleNamespace(completion_stream_generator=None)
    state = SimpleNamespace(
        args=SimpleNamespace(middleware=names, sse_keep_alive_interval=keep_alive_s),
        openai_serving_completion=serving,
        openai_serving_chat=None,
    )
    join_streams(state)
    assert serving.completion_stream_generator is None
