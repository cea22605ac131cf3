import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp
import aiohttp.web
import pytest

from loadgen.clients import question
from loadgen.clients.question import ServedModel, open_session, served_model
from loadgen.clients.server_tokenizer import QUESTIONS_AT_ONCE, ServerTokenizer
from loadgen.errors import ServerError
from loadgen.records.tokenizer import Tokenizer
from tests.loadgen.known_server import MODEL, TEMPLATE_TOKENS, KnownServer

Answer = TypeVar("Answer")


def asked(server: KnownServer, question: Callable[[Tokenizer], Awaitable[Answer]]) -> Answer:
    async def ask() -> Answer:
        async with open_session() as session:
            return await question(ServerTokenizer(session, url=server.url, model=MODEL))

    return asyncio.run(ask())


def model_of(server: KnownServer, wanted: str | None) -> ServedModel:
    async def ask() -> ServedModel:
        async with open_session() as session:
            return await served_model(session, server.url, wanted)

    return asyncio.run(ask())


def test_texts_are_split_in_their_order_however_many_there_are() -> None:
    texts = ["a " * length for length in range(1, 3 * QUESTIONS_AT_ONCE)]
    with KnownServer().serving() as server:
        ids = asked(server, lambda tokenizer: tokenizer.encode(texts))

    assert [len(each) for each in ids] == list(range(1, 3 * QUESTIONS_AT_ONCE))
    assert ids[1] == (0, 0)


def test_ids_are_put_together_in_their_order() -> None:
    with KnownServer().serving() as server:
        assert asked(server, lambda it: it.decode([(1, 2), (), (3,)])) == ["t1 t2", "", "t3"]
        assert asked(server, lambda it: it.decode([])) == []


def test_special_tokens_are_left_out_of_pieces_and_counted_in_prompts() -> None:
    with KnownServer(special_tokens=1).serving() as server:
        assert asked(server, lambda it: it.encode(["a b"])) == [(0, 1)]
        assert asked(server, lambda it: it.prompt_tokens("a b")) == 3


def test_a_chat_is_counted_with_its_template() -> None:
    said = [("system", "a b"), ("user", "c")]
    with KnownServer().serving() as server:
        assert asked(server, lambda it: it.chat_tokens(said)) == 3 + TEMPLATE_TOKENS


def test_a_server_without_a_tokenizer_is_one_line_that_says_what_to_do() -> None:
    with (
        KnownServer(with_tokenizer=False).serving() as server,
        pytest.raises(ServerError, match=r"/tokenize: status 404: .*--tokenizer") as caught,
    ):
        asked(server, lambda it: it.encode(["a"] * 99))
    assert "\n" not in str(caught.value)


def test_the_model_is_the_first_or_the_one_that_is_wanted() -> None:
    with KnownServer(context_tokens=512).serving() as server:
        assert model_of(server, None) == ServedModel(name=MODEL, context_tokens=512)
        assert model_of(server, MODEL).name == MODEL
        with pytest.raises(ServerError, match=f"no model 'other'; the server has {MODEL}"):
            model_of(server, "other")


def test_a_server_that_is_not_there_is_one_line() -> None:
    with KnownServer().serving() as server:
        pass
    with pytest.raises(ServerError, match=r"/v1/models: cannot be reached: Connection refused$"):
        model_of(server, None)


def model_by(answer: bytes) -> ServedModel:
    """What a server has whose every answer is these bytes."""

    async def other(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(body=answer)

    async def ask() -> ServedModel:
        app = aiohttp.web.Application()
        app.router.add_get("/v1/models", other)
        runner = aiohttp.web.AppRunner(app)
        await runner.setup()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with open_session() as session:
                url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                return await served_model(session, url, None)
        finally:
            await runner.cleanup()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "answer",
    [
        b'{"models": []}',
        b'{"data": [{"id": "\xff"}]}',
        b'{"x": ' + b"[" * 100_000,
        b'{"data": [{"id": "a", "max_model_len": -1}]}',
        b'{"data": [{"id": "a", "max_model_len": 1000000000000000000000000000000}]}',
    ],
)
def test_an_answer_of_another_form_is_one_line(answer: bytes) -> None:
    with pytest.raises(ServerError, match="the answer is not the expected"):
        model_by(answer)


def test_a_model_whose_name_would_steer_a_terminal_is_refused() -> None:
    with pytest.raises(ServerError, match="control characters") as caught:
        model_by(b'{"data": [{"id": "a\\u001b[2J"}]}')
    assert str(caught.value).isprintable()


def test_an_answer_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = b'{"data": [{"id": "a"}]}'
    monkeypatch.setattr(question, "ANSWER_BYTES_MAX", len(answer))
    assert model_by(answer).name == "a"
    with pytest.raises(ServerError, match="an answer of more than"):
        model_by(answer + b" ")
