"""Clients that ask a server over HTTP continuously, and check every answer."""

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import aiohttp
import numpy as np

from tests.simulation.over_http.question import Answer, Question

ANSWER_S_MAX = 600.0
IDLE_S_MAX = 300.0
HANG_UP_CHANCE = 0.03
"""Of each streamed request: its client leaves after the first tokens."""
REFUSED = (429, 503)
RETRY_S = 0.5
FAILURES_SHOWN = 5


@dataclass
class Tally:
    """Outcomes of all requests, as their clients saw them."""

    asked: int = 0
    whole: int = 0
    hung_up: int = 0
    refused: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    by_name: Counter[str] = field(default_factory=Counter)

    @property
    def accepted(self) -> int:
        return self.whole + self.hung_up + len(self.failures)


async def ask(
    session: aiohttp.ClientSession,
    question: Question,
    *,
    request_id: str,
    hang_up_after: int | None = None,
) -> tuple[int, Answer]:
    """The status, and the answer as far as it was read.

    `hang_up_after` closes the connection after that many events. Raises aiohttp.ClientError, and
    AssertionError for an error within a stream.
    """
    answer = Answer()
    headers = {"X-Request-Id": request_id}
    async with session.post(question.path, json=dict(question.body), headers=headers) as response:
        if response.status != 200:
            answer.text = await response.text()
            return response.status, answer
        if not question.is_streamed:
            answer.take(await response.json())
            return 200, answer
        events = 0
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                return 200, answer
            payload = json.loads(data)
            assert "error" not in payload, payload["error"]
            answer.take(payload)
            events += 1
            if events == hang_up_after:
                return 200, answer
        raise AssertionError("a stream ended without its end")


def session_of(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        base_url=url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
    )


async def answers_of(url: str, questions: Sequence[Question]) -> dict[str, Answer]:
    """The right answers: a quiet server's, asked in turn."""
    found = {}
    async with session_of(url) as session:
        for question in questions:
            status, answer = await ask(session, question, request_id=f"calm-{question.name}")
            assert status == 200, answer.text
            assert answer.end is not None, question.name
            assert answer.counted_tokens == len(answer.tokens), question.name
            found[question.name] = answer
    return found


class Clients:
    """A context of `count` clients, each of which asks on when it has its answer.

    Between `pause` and `go_on` they ask nothing. `in_flight` has the questions of unfinished
    requests, `spans_s` the times of finished ones.
    """

    def __init__(
        self,
        url: str,
        questions: Sequence[Question],
        expected: Mapping[str, Answer],
        *,
        count: int,
        seed: int,
    ) -> None:
        self.tally = Tally()
        self.in_flight: dict[str, str] = {}
        self.spans_s: dict[str, tuple[float, float]] = {}
        self._url, self._questions, self._expected = url, questions, expected
        self._count, self._seed = count, seed
        self._numbers = itertools.count(1)
        self._paused = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(ANSWER_S_MAX if error[0] is None else 5.0)

    def check(self) -> None:
        """Assert that no answer has been wrong so far."""
        assert self._thread.is_alive()
        failures = self.tally.failures
        assert not failures, f"{len(failures)}: " + "\n".join(failures[:FAILURES_SHOWN])

    def pause(self) -> None:
        """Stop asking, and wait until every request has ended."""
        self._paused.set()
        time.sleep(0.1)  # one that had looked before has asked by then
        end_s = time.monotonic() + IDLE_S_MAX
        while self.in_flight:
            assert time.monotonic() < end_s, f"requests that do not end: {self.in_flight}"
            time.sleep(0.05)  # the clients are another thread
        self.check()

    def go_on(self) -> None:
        self._paused.clear()

    def was_under_way(self, request_id: str, *, since_s: float) -> bool:
        """Whether the request is under way, or was after a moment."""
        return request_id in self.in_flight or self.spans_s.get(request_id, (0, 0))[1] >= since_s

    def wait_for(self, answers: int, timeout_s: float = IDLE_S_MAX) -> None:
        wanted, end_s = self.tally.whole + answers, time.monotonic() + timeout_s
        while self.tally.whole < wanted:
            self.check()
            assert time.monotonic() < end_s, "nothing is answered any more"
            time.sleep(0.05)  # the clients are another thread

    async def _run(self) -> None:
        async with session_of(self._url) as session:
            await asyncio.gather(*(self._ask_on(session, user) for user in range(self._count)))

    async def _ask_on(self, session: aiohttp.ClientSession, user: int) -> None:
        rng = np.random.default_rng((self._seed, user))
        while not self._ended.is_set():
            if self._paused.is_set():
                await asyncio.sleep(0.05)
                continue
            question = self._questions[int(rng.integers(len(self._questions)))]
            hang_up = int(rng.integers(1, 4)) if rng.random() < HANG_UP_CHANCE else None
            await self._ask_one(session, question, hang_up if question.is_streamed else None)

    async def _ask_one(
        self, session: aiohttp.ClientSession, question: Question, hang_up_after: int | None
    ) -> None:
        tally, request_id = self.tally, f"chaos-{next(self._numbers)}"
        began_s = time.monotonic()
        self.in_flight[request_id] = question.name
        tally.asked += 1
        try:
            status, answer = await ask(
                session, question, request_id=request_id, hang_up_after=hang_up_after
            )
        except (aiohttp.ClientError, AssertionError, TimeoutError, ValueError) as error:
            tally.failures.append(f"{request_id}, {question.name}: {error!r}")
            return
        finally:
            del self.in_flight[request_id]
            self.spans_s[request_id] = (began_s, time.monotonic())
        if status in REFUSED:
            tally.refused += 1
            await asyncio.sleep(RETRY_S)
            return
        if status != 200:
            tally.failures.append(f"{request_id}, {question.name}: {status} {answer.text}")
            return
        self._judge(question, request_id, answer, hang_up_after)
        tally.slowest_s = max(tally.slowest_s, time.monotonic() - began_s)

    def _judge(
        self, question: Question, request_id: str, answer: Answer, hang_up_after: int | None
    ) -> None:
        whole = answer.end is not None and answer.counted_tokens is not None
        wrong = answer.differs(self._expected[question.name], whole=hang_up_after is None)
        if wrong is not None:
            self.tally.failures.append(f"{request_id}, {question.name}: {wrong}")
        elif hang_up_after is not None and not whole:
            self.tally.hung_up += 1
        else:
            self.tally.whole += 1
            self.tally.by_name[question.name] += 1
        self.tally.tokens += len(answer.tokens)
