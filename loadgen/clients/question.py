"""Typed questions to the server that a run depends on."""

from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec

from loadgen.clients.certificates import trusted
from loadgen.clients.connection_problem import PROBLEMS, connect_words
from loadgen.clients.server_json import UNREADABLE, TokenCount, error_message, short_line
from loadgen.errors import ServerError

ANSWER_TIMEOUT_S: Final = 120.0
ANSWER_BYTES_MAX: Final = 1 << 26
"""64 MiB: ids of a prompt of 10^6 tokens are 8 MB of JSON, and /tokenize may add their words."""

Answer = TypeVar("Answer")


def open_session(*, key: str = "", ca: Path | None = None) -> aiohttp.ClientSession:
    """Open a session in a running event loop; a non-empty `key` goes with each question.

    Raises as `trusted`.
    """
    connector = aiohttp.TCPConnector(ssl=True if ca is None else trusted(ca))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(connector=connector, headers=headers)


async def ask(
    session: aiohttp.ClientSession,
    address: str,
    decoder: msgspec.json.Decoder[Answer],
    *,
    body: object = None,
    hint: str = "",
) -> Answer:
    """GET `address`, or POST `body` to it as JSON, and decode the answer.

    Raises ServerError, with `hint`, without an answer of status 200 that `decoder` takes.
    """
    try:
        async with session.request(
            "GET" if body is None else "POST",
            address,
            data=None if body is None else msgspec.json.encode(body),
            headers={} if body is None else {"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
        ) as response:
            answer = await read_answer(response)
            if response.status != 200:
                words = f"status {response.status}: {error_message(answer)}"
                raise ServerError(url=address, reason=words + hint)
            return decoder.decode(answer)
    except TimeoutError as error:
        raise ServerError(url=address, reason=f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
    except PROBLEMS as error:
        reason = f"cannot be reached: {connect_words(error)}{hint}"
        raise ServerError(url=address, reason=reason) from error
    except UNREADABLE as error:
        reason = f"the answer is not the expected: {error}{hint}"
        raise ServerError(url=address, reason=reason) from error


async def read_answer(response: aiohttp.ClientResponse) -> bytes:
    """Read a body to its end; raises ServerError beyond ANSWER_BYTES_MAX."""
    answer = bytearray()
    async for piece in response.content.iter_any():
        answer += piece
        if len(answer) > ANSWER_BYTES_MAX:
            reason = f"an answer of more than {ANSWER_BYTES_MAX:,} bytes"
            raise ServerError(url=str(response.url), reason=reason)
    return bytes(answer)


class ServedModel(
    msgspec.Struct, frozen=True, rename={"name": "id", "context_tokens": "max_model_len"}
):
    """A model's name, and its context in tokens if the server gives it."""

    name: str
    context_tokens: TokenCount | None = None


class _Models(msgspec.Struct):
    data: list[ServedModel]


_MODELS: Final = msgspec.json.Decoder(_Models)


async def served_model(session: aiohttp.ClientSession, url: str, wanted: str | None) -> ServedModel:
    """The model `wanted`, or the server's first; raises ServerError without one."""
    address = f"{url.rstrip('/')}/v1/models"
    models = await ask(session, address, _MODELS)
    if not models.data:
        raise ServerError(url=address, reason="the server lists no model")
    found = [model for model in models.data if wanted in (None, model.name)]
    if not found:
        names = short_line(", ".join(model.name for model in models.data))
        raise ServerError(url=address, reason=f"no model {wanted!r}; the server has {names}")
    if not found[0].name.isprintable():  # it goes into every request and every report
        reason = f"the model's name {short_line(found[0].name)!r} has control characters in it"
        raise ServerError(url=address, reason=reason)
    return found[0]
