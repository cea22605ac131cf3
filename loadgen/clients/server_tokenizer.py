"""The server's own tokenizer, by `/tokenize` and `/detokenize` of vLLM and SGLang.

One text per call; up to QUESTIONS_AT_ONCE calls run concurrently.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from loadgen.clients.question import ask
from loadgen.clients.server_json import TokenId

QUESTIONS_AT_ONCE: Final = 16

_HINT: Final = "; --tokenizer PATH reads a local one, --tokenizer words needs none"

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Tokens(msgspec.Struct):
    tokens: list[TokenId]


class _Text(msgspec.Struct):
    prompt: str


_TOKENS: Final = msgspec.json.Decoder(_Tokens)
_TEXT: Final = msgspec.json.Decoder(_Text)


class ServerTokenizer:
    """A `Tokenizer` (loadgen.records.tokenizer) that asks the server at `url` for `model`."""

    def __init__(self, session: aiohttp.ClientSession, *, url: str, model: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._model = model

    @property
    def words(self) -> str:
        """Whose count it is."""
        return "the server's /tokenize"

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Split texts into token ids without special tokens; raises ServerError."""

        async def one(text: str) -> tuple[int, ...]:
            return await self._tokens(prompt=text, add_special_tokens=False)

        return await _each(one, texts)

    async def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join each list of token ids; raises ServerError."""

        async def one(tokens: Sequence[int]) -> str:
            body = {"model": self._model, "tokens": tokens}
            address = f"{self._url}/detokenize"
            return (await ask(self._session, address, _TEXT, body=body, hint=_HINT)).prompt

        return await _each(one, ids)

    async def prompt_tokens(self, text: str) -> int:
        """Count `text` as a completion's prompt, with special tokens; raises ServerError."""
        return len(await self._tokens(prompt=text, add_special_tokens=True))

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        """Count a templated chat of (role, content); raises ServerError."""
        said = [{"role": role, "content": content} for role, content in messages]
        return len(await self._tokens(messages=said, add_generation_prompt=True))

    async def _tokens(self, **question: Any) -> tuple[int, ...]:
        body = {"model": self._model, **question}
        answer = await ask(self._session, f"{self._url}/tokenize", _TOKENS, body=body, hint=_HINT)
        return tuple(answer.tokens)


async def _each(
    question: Callable[[Item], Awaitable[Answer]], items: Sequence[Item]
) -> list[Answer]:
    """Ask about every item, QUESTIONS_AT_ONCE at a time; answers in order, the first failure ends
    it.
    """
    answers: list[Answer | None] = [None] * len(items)
    numbered = iter(enumerate(items))

    async def some() -> None:
        for at, item in numbered:
            answers[at] = await question(item)

    askers = [asyncio.ensure_future(some()) for _ in range(min(QUESTIONS_AT_ONCE, len(items)))]
    try:
        await asyncio.gather(*askers)
    finally:
        for asker in askers:
            asker.cancel()
    return answers  # type: ignore[return-value]  # each is there, or gather raised
