"""Logprobs of prompts: as many as a server with keys makes without standing still, and no more."""

from typing import Any

import httpx
import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.entry import Outcome
from serving.policy.admission.work import WorkClass
from serving.server.gateway.admitted_generate import PROMPT_LOGPROBS_MAX
from tests.serving.server.gateway.http.served_http import MODEL, HttpServer
from tests.serving.server.gateway.http.test_http_gateway import run
from tests.serving.server.gateway.small_async_llm import CONTEXT_TOKENS

pytestmark = pytest.mark.long

SECRET = "us-0123456789012345678901234567890123456789"
LONG = CONTEXT_TOKENS - 10


async def ask(server: HttpServer, **body: Any) -> httpx.Response:
    asked = {"model": MODEL, "max_tokens": 1, "prompt_logprobs": 1} | body
    headers = {"authorization": f"Bearer {SECRET}"}
    return await server.http.post("/v1/completions", json=asked, headers=headers)


@pytest.mark.parametrize(
    ("prompts", "asked", "wanted"),
    [
        (1, {"prompt_logprobs": 20}, LONG * 21),
        (1, {"echo": True, "logprobs": 20, "prompt_logprobs": None}, LONG * 21),
        (9, {}, 9 * LONG * 2),
        (1, {"n": 9, "temperature": 1.0}, 9 * LONG * 2),
    ],
)
def test_what_would_hold_up_others_is_refused_before_any_of_it_runs(
    prompts: int, asked: dict[str, Any], wanted: int
) -> None:
    async def use(server: HttpServer) -> None:
        answer = await ask(server, prompt=[[7] * LONG] * prompts, **asked)

        assert answer.status_code == 400
        told = f"at most {PROMPT_LOGPROBS_MAX:,} logprobs of a request's prompts"
        assert told in answer.json()["error"]["message"]
        assert server.core.added == []
        state = server.admission.state().classes[WorkClass.INTERACTIVE]
        assert sum(state.left.values()) == 1
        assert state.left[Outcome.FINISHED] == 0

    assert wanted > PROMPT_LOGPROBS_MAX
    run(use, keys=KeyRing(key_hashes=[hash_of(SECRET)]))


def test_a_prompt_of_all_the_context_has_one_at_each_token() -> None:
    async def use(server: HttpServer) -> None:
        answer = await ask(server, prompt=[7] * LONG)
        assert answer.status_code == 200, answer.text

    run(use, keys=KeyRing(key_hashes=[hash_of(SECRET)]))


def test_without_keys_nobody_waits_for_somebody_else() -> None:
    async def use(server: HttpServer) -> None:
        answer = await ask(server, prompt=[[7] * LONG] * 9)
        assert answer.status_code == 200, answer.text

    run(use)
