"""What a run asks an OpenAI-compatible server before it starts: its models and its tokenizer.

`/v1/models` is OpenAI's; `/tokenize` is vLLM's (and SGLang's, in the same form).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import aiohttp
import msgspec
import numpy as np

from loadgen.clients.completion_stream import error_message
from loadgen.errors import ServerError
from loadgen.prompt_pool import PromptPool

ANSWER_TIMEOUT_S: Final = 120.0
PIECE_CHARACTERS: Final = 1 << 16  # of text, in one request to the tokenizer

Answer = TypeVar("Answer")


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokens(msgspec.Struct):
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model's name, and its context in tokens if the server says so."""

    name: str
    context_tokens: int | None


async def served_model(session: aiohttp.ClientSession, url: str, wanted: str | None) -> ServedModel:
    """Return the model called `wanted`, or the server's first; raises ServerError without one."""
    address = f"{url}/v1/models"
    models = await _ask(session, "GET", address, None, msgspec.json.Decoder(_Models))
    if not models.data:
        raise ServerError(url=address, reason="the server lists no model")
    found = [model for model in models.data if wanted in (None, model.id)]
    if not found:
        names = ", ".join(model.id for model in models.data)
        raise ServerError(url=address, reason=f"no model {wanted!r}; the server has {names}")
    return ServedModel(name=found[0].id, context_tokens=found[0].max_model_len)


async def tokenised_pool(
    session: aiohttp.ClientSession,
    url: str,
    *,
    model: str,
    text: Iterator[str],
    min_tokens: int,
) -> PromptPool:
    """Have the server tokenise as much of `text` as gives `min_tokens`; raises ServerError.

    Special tokens are left out: a window is cut anywhere, and one in its middle would be odd.
    """
    address = f"{url}/tokenize"
    decoder = msgspec.json.Decoder(_Tokens)
    tokens: list[int] = []
    while len(tokens) < min_tokens:
        piece = _piece(text)
        question = {"model": model, "prompt": piece, "add_special_tokens": False}
        answer = await _ask(session, "POST", address, msgspec.json.encode(question), decoder)
        if not answer.tokens:
            raise ServerError(url=address, reason="the tokenizer returned no tokens for a text")
        tokens += answer.tokens
    return PromptPool(tokens=np.array(tokens, dtype=np.int64))


def _piece(text: Iterator[str]) -> str:
    parts: list[str] = []
    characters = 0
    while characters < PIECE_CHARACTERS:
        part = next(text)
        parts.append(part)
        characters += len(part)
    return "".join(parts)


async def _ask(
    session: aiohttp.ClientSession,
    method: str,
    address: str,
    body: bytes | None,
    decoder: msgspec.json.Decoder[Answer],
) -> Answer:
    try:
        async with session.request(
            method,
            address,
            data=body,
            headers={"Content-Type": "application/json"} if body else None,
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
        ) as response:
            answer = await response.read()
            if response.status != 200:
                words = error_message(answer)
                raise ServerError(url=address, reason=f"status {response.status}: {words}")
            return decoder.decode(answer)
    except TimeoutError as error:
        reason = f"no answer within {ANSWER_TIMEOUT_S:g} s"
        raise ServerError(url=address, reason=reason) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ServerError(url=address, reason=f"cannot be reached: {error}") from error
    except msgspec.MsgspecError as error:
        raise ServerError(url=address, reason=f"the answer is not the expected: {error}") from error
