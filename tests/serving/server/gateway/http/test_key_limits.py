"""A key's limits count what vLLM runs, however a body spells it: before any of it has run."""

from typing import Any

import httpx
import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.entry import Outcome
from serving.policy.admission.work import WorkClass
from serving.server.gateway.http import request_work
from tests.serving.server.gateway.http.served_http import MODEL, HttpServer
from tests.serving.server.gateway.http.test_http_gateway import run

pytestmark = pytest.mark.long

SECRET = "us-0123456789012345678901234567890123456789"
TOKENS_PER_MINUTE = 2_000
AT_ONCE = 4


@pytest.fixture
def keys(tmp_path: Any) -> KeyRing:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[key]]\nname = "alice"\nhash = "{hash_of(SECRET)}"\n'
        f"tokens_per_minute = {TOKENS_PER_MINUTE}\nconcurrent = {AT_ONCE}\n"
    )
    path.chmod(0o600)
    return KeyRing(key_file=path)


@pytest.fixture
def rich(tmp_path: Any) -> KeyRing:
    """A key whose sequences are not limited."""
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[key]]\nname = "alice"\nhash = "{hash_of(SECRET)}"\n'
        f"tokens_per_minute = {TOKENS_PER_MINUTE}\n"
    )
    path.chmod(0o600)
    return KeyRing(key_file=path)


async def ask(server: HttpServer, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    common = {"model": MODEL, "max_tokens": 100, "ignore_eos": True}
    if path == "/v1/completions":
        common["prompt"] = "hello"
    else:
        common["messages"] = [{"role": "user", "content": "hello"}]
    return await server.http.post(
        path, json=common | body, headers={"authorization": f"Bearer {SECRET}"}
    )


def refused(answer: httpx.Response, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, code), answer.text
    assert float(answer.headers["retry-after-ms"]) > 0
    assert answer.headers["x-ratelimit-limit-tokens"] == str(TOKENS_PER_MINUTE)


@pytest.mark.parametrize("n", [60, "60", " 60 ", 60.0, "60.0", "6_0"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_number_of_answers_counts_in_every_form_that_vllm_reads(
    rich: KeyRing, path: str, n: Any
) -> None:
    async def use(server: HttpServer) -> None:
        refused(await ask(server, path, n=n), "tokens_per_minute")
        assert server.core.added == []

    run(use, keys=rich)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_estimate_could_not_see_is_refused_before_any_of_it_runs(
    rich: KeyRing, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A body that the gateway counts as one answer, whatever the reason."""
    monkeypatch.setattr(request_work, "_choices", lambda *_: 1)

    async def use(server: HttpServer) -> None:
        answer = await ask(server, n=30, stream=stream)
        refused(answer, "tokens_per_minute")
        assert server.core.added == []
        state = server.admission.state().classes[WorkClass.INTERACTIVE]
        assert state.left[Outcome.REFUSED] == 1
        again = await ask(server, n=2)  # what was charged for the estimate came back
        assert again.status_code == 200
        assert int(again.headers["x-ratelimit-remaining-tokens"]) > 1_700

    run(use, keys=rich)


def test_prompts_in_a_list_are_refused_together(
    rich: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_work, "_prompts", lambda _: (1, 1))

    async def use(server: HttpServer) -> None:
        refused(await ask(server, prompt=["hello"] * 30), "tokens_per_minute")
        assert server.core.added == []

    run(use, keys=rich)


def test_a_search_with_beams_is_counted_as_a_whole(rich: KeyRing) -> None:
    async def use(server: HttpServer) -> None:
        answer = await ask(server, n="4", use_beam_search=True)
        refused(answer, "tokens_per_minute")
        assert server.core.added == []
        small = await ask(server, n=2, use_beam_search=True, max_tokens=3)
        assert small.status_code == 200

    run(use, keys=rich)


@pytest.mark.parametrize("body", [{"n": AT_ONCE + 1}, {"prompt": ["a"] * (AT_ONCE + 1)}])
def test_concurrent_counts_sequences(keys: KeyRing, body: dict[str, Any]) -> None:
    async def use(server: HttpServer) -> None:
        refused(await ask(server, max_tokens=2, **body), "concurrent")
        assert server.core.added == []
        fits = await ask(server, max_tokens=2, n=AT_ONCE)
        assert fits.status_code == 200
        assert (await ask(server, max_tokens=2, n=AT_ONCE)).status_code == 200

    run(use, keys=keys)


def test_a_chat_that_does_not_say_how_long_it_gets_is_no_whole_context(rich: KeyRing) -> None:
    async def use(server: HttpServer) -> None:
        answer = await ask(server, "/v1/chat/completions", max_tokens=None, stop=["a", "e", "o"])
        assert answer.status_code == 200

    run(use, keys=rich)


HEAVY_SCHEMA = {"enum": [f"value-{each}" for each in range(50_000)]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {"json": HEAVY_SCHEMA}},
        {"structured_outputs": {"choice": HEAVY_SCHEMA["enum"]}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "heavy", "schema": HEAVY_SCHEMA},
            }
        },
    ],
)
def test_a_schema_that_takes_a_minute_to_compile_is_the_request_s_mistake(
    body: dict[str, Any], stream: bool
) -> None:
    async def use(server: HttpServer) -> None:
        answer = await ask(server, "/v1/chat/completions", stream=stream, **body)
        assert answer.status_code == 400, answer.text
        assert "weight of at most 100,000" in answer.json()["error"]["message"]
        assert server.core.added == []
        light = {"structured_outputs": {"json": {"enum": ["yes", "no"]}}}
        assert (await ask(server, max_tokens=2, **light)).status_code == 200

    run(use, body_bytes_max=4 * 2**20)


def test_a_key_has_so_many_schemas_a_minute(keys: KeyRing) -> None:
    async def use(server: HttpServer) -> None:
        for number in range(20):
            values = [f"value-{number}-{each}" for each in range(5_000)]
            answer = await ask(server, max_tokens=2, structured_outputs={"choice": values})
            if answer.status_code != 200:
                break
        refused(answer, "grammars_per_minute")
        assert 2 <= number <= 10

    run(use, keys=keys, body_bytes_max=4 * 2**20)
