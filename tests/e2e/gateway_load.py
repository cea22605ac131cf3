"""Clients of a gateway that ask without a pause, and note the engine of each answer."""

import asyncio
import hashlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from openai import AsyncOpenAI, OpenAIError

from tests.e2e.gateway_process import KEY

ROUTED: Final = "x-smg-routed-worker-id"
NEW_TOKENS: Final = 24
ANSWERS_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request; `failure` is empty for a whole stream. Times are monotonic."""

    began_s: float
    ended_s: float
    engine: str
    failure: str


class GatewayLoad:
    """`users` clients that stream chats until stopped."""

    def __init__(self, url: str, *, model: str, users: int) -> None:
        self._url, self._model, self._users = url, model, users
        self._stopped = False
        self.answers: list[Answered] = []

    def run(self) -> None:
        """Ask until `stop`, and until every request has ended. Blocks."""
        asyncio.run(self._run())

    def stop(self) -> None:
        self._stopped = True

    def since(self, moment_s: float) -> list[Answered]:
        return [each for each in self.answers if each.began_s >= moment_s]

    def wait_for(self, engines: Iterable[str], *, since_s: float, answers: int = 1) -> None:
        """Wait until each of `engines` has given that many answers to requests begun since then."""
        end_s = time.monotonic() + ANSWERS_TIMEOUT_S
        while True:
            given = Counter(each.engine for each in self.since(since_s))
            if all(given[engine] >= answers for engine in engines):
                return
            assert time.monotonic() < end_s, f"{answers} of each were wanted: {given}"
            time.sleep(0.1)  # the clients are other threads

    async def _run(self) -> None:
        async with AsyncOpenAI(
            base_url=f"{self._url}/v1", api_key=KEY, max_retries=0, timeout=120
        ) as client:
            await asyncio.gather(*(self._ask_on(client, user) for user in range(self._users)))

    async def _ask_on(self, client: AsyncOpenAI, user: int) -> None:
        for number in itertools.count(1):
            if self._stopped:
                return
            began_s, engine, failure = time.monotonic(), "", ""
            try:
                engine = await self._ask(client, _prompt(user, number))
            except (OpenAIError, AssertionError) as error:
                failure = f"{type(error).__name__}: {error}"
            self.answers.append(
                Answered(began_s=began_s, ended_s=time.monotonic(), engine=engine, failure=failure)
            )

    async def _ask(self, client: AsyncOpenAI, prompt: str) -> str:
        """Stream one chat to its end; returns the engine named by the gateway."""
        raw = await client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=NEW_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        made = 0
        async for chunk in raw.parse():
            if chunk.usage is not None:
                made = chunk.usage.completion_tokens
        assert made == NEW_TOKENS, f"{made} of {NEW_TOKENS} tokens"
        return str(raw.headers[ROUTED])


def _prompt(user: int, number: int) -> str:
    """A prompt with a unique beginning, which no engine has cached."""
    return f"{hashlib.sha256(f'{user}.{number}'.encode()).hexdigest()}: what is that?"


@contextmanager
def asking(url: str, *, model: str, users: int) -> Iterator[GatewayLoad]:
    """Clients that ask while the block runs; every request has ended after it."""
    load = GatewayLoad(url, model=model, users=users)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join()
