"""Answers that are not taken: whose connection ends, and when."""

import asyncio
from typing import Any

import pytest

from serving.server.gateway.grpc import stranger_answers
from serving.server.gateway.grpc.stranger_answers import AnsweredContext, StrangerAnswers


class Context:
    """A call whose answers are taken when `taken` is set."""

    def __init__(self, peer: str) -> None:
        self.taken = asyncio.Event()
        self.method = "Check"
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def write(self, message: Any) -> None:
        del message
        await self.taken.wait()


def test_who_does_not_take_an_answer_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranger_answers, "ANSWER_WALL_S", 0.05)
    cut: list[str] = []

    async def main() -> None:
        answers = StrangerAnswers(cut.append, cut_off_late=cut.append)
        slow, prompt = Context("slow"), Context("prompt")
        prompt.taken.set()
        assert AnsweredContext(prompt, answers).method == "Check"
        await AnsweredContext(prompt, answers).write(b"")
        writing = asyncio.create_task(answers.write(slow, b""))
        await asyncio.sleep(0.2)
        assert cut == ["slow"]
        writing.cancel()

    asyncio.run(main())


def test_of_too_many_the_connection_with_most_goes_and_one_with_too_many_at_once() -> None:
    cut: list[str] = []

    async def main() -> None:
        answers = StrangerAnswers(
            cut.append, cut_off_late=cut.append, connection_max=3, answers_max=4
        )

        async def stuck(peer: str) -> None:
            tasks.append(asyncio.create_task(answers.write(Context(peer), b"")))
            await asyncio.sleep(0)

        tasks: list[asyncio.Task[None]] = []
        for peer in ("a", "a", "b"):
            await stuck(peer)
        assert cut == []
        await stuck("c")
        await stuck("b")  # the fifth of all: who has most goes
        assert cut == ["a"]
        for task in tasks[:2]:  # as their connection ends
            task.cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        await stuck("b")
        await stuck("b")
        assert cut == ["a", "b"]
        for task in tasks:
            task.cancel()

    asyncio.run(main())
