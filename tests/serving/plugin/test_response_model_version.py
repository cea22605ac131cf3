"""A response's fingerprint, with the names of the weights that made it."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.serve.utils.fingerprint import set_default_fingerprint_mode

from serving.plugin.request_place import WEIGHTS_KEY
from serving.plugin.response_model_version import begin_response, name_weights_in_responses


class AnEngine:
    """Says of each request what weights made it, as outputs of the engine do."""

    def __init__(self) -> None:
        self.closed = 0
        self.processed: list[Any] = []
        self.output_processor = SimpleNamespace(
            request_states={"a": SimpleNamespace(), "b": SimpleNamespace()},
            process_outputs=self.processed.extend,
        )

    async def generate(self, *names: str) -> AsyncGenerator[Any, None]:
        try:
            for count in range(len(names)):
                await asyncio.sleep(0)
                params = {WEIGHTS_KEY: list(names[: count + 1])}
                yield SimpleNamespace(kv_transfer_params=params)
        finally:
            self.closed += 1


@pytest.fixture
def engine() -> Any:
    engine = AnEngine()
    name_weights_in_responses(engine)
    name_weights_in_responses(engine)
    return engine


@pytest.fixture
def serving() -> GenerateBaseServing:
    made = GenerateBaseServing.__new__(GenerateBaseServing)
    made.system_fingerprint = "vllm-0-abc"
    return made


async def answered(engine: Any, serving: GenerateBaseServing, *requests: tuple[str, ...]) -> Any:
    """What the fingerprint is when all of `requests`, of one HTTP request, have ended."""
    begin_response()

    async def one(names: tuple[str, ...]) -> None:
        async for output in engine.generate(*names):
            assert output.kv_transfer_params is None

    await asyncio.gather(*map(one, requests))
    return serving.system_fingerprint


def test_every_output_says_what_its_request_s_last_one_said(engine: Any) -> None:
    first, second = {WEIGHTS_KEY: ["v1-a"]}, {WEIGHTS_KEY: ["v1-a", "v2-b"]}
    said = [("a", first), ("b", None), ("a", None), ("gone", None), ("a", second), ("a", None)]
    outputs = [SimpleNamespace(request_id=name, kv_transfer_params=each) for name, each in said]
    engine.output_processor.process_outputs(outputs)
    assert engine.processed == outputs
    assert [each.kv_transfer_params for each in outputs] == [
        first,
        None,
        first,
        None,
        *[second] * 2,
    ]


def test_a_response_names_its_weights_behind_vllm_s_words(engine: Any, serving: Any) -> None:
    assert serving.system_fingerprint == "vllm-0-abc"
    assert asyncio.run(answered(engine, serving, ("v1-a",))) == "vllm-0-abc-v1-a"


def test_a_text_of_two_versions_names_both_in_their_order(engine: Any, serving: Any) -> None:
    assert asyncio.run(answered(engine, serving, ("v2-b", "v1-a"))) == "vllm-0-abc-v2-b+v1-a"


def test_several_requests_of_one_response_are_gathered(engine: Any, serving: Any) -> None:
    said = asyncio.run(answered(engine, serving, ("v1-a",), ("v1-a",), ("v2-b",)))
    assert said == "vllm-0-abc-v1-a+v2-b"


def test_responses_at_the_same_time_do_not_mix(engine: Any, serving: Any) -> None:
    async def both() -> list[str]:
        tasks = [
            asyncio.create_task(answered(engine, serving, (name,) * 5)) for name in ("v1-a", "v2-b")
        ]
        return await asyncio.gather(*tasks)

    assert asyncio.run(both()) == ["vllm-0-abc-v1-a", "vllm-0-abc-v2-b"]


def test_a_client_that_leaves_ends_its_request_at_once(engine: Any) -> None:
    async def leave() -> int:
        outputs = engine.generate("v1-a", "v1-a")
        await anext(outputs)
        await outputs.aclose()
        return engine.closed

    assert asyncio.run(leave()) == 1


@pytest.fixture
def _custom() -> Iterator[None]:
    set_default_fingerprint_mode("custom", "mine")
    yield
    set_default_fingerprint_mode("full")


@pytest.mark.usefixtures("_custom")
def test_a_literal_that_the_user_chose_stays(engine: Any, serving: Any) -> None:
    serving.system_fingerprint = "mine"
    assert asyncio.run(answered(engine, serving, ("v1-a",))) == "mine"


def test_no_fingerprint_stays_none(engine: Any, serving: Any) -> None:
    serving.system_fingerprint = None
    assert asyncio.run(answered(engine, serving, ("v1-a",))) is None
