"""`ultraserve serve --replica-roles prefill=1,decode=2`: real engines, KV between them.

Three engines start, twice, and so slow: the routing is tested every day, before small replicas.
"""

import asyncio
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from serving.main import main
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.test_replicas import (
    KEY,
    asked,
    key_file,
    metric,
    ready,
    replicas,
    set_environment,
    texts,
)
from tests.e2e.tray import MODEL

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1_800)]

START_S = 480.0
"""Of three engines, on a busy host."""

STEP_TOKENS = 512
PROMPTS = 12
"""At once, each longer than a step."""

TRANSFERS = "ultraserve_kv_transfers_total"


@pytest.fixture(scope="module")
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Its parameter says what comes before the roles at the start."""
    asked = f"{getattr(request, 'param', '')}prefill=1,decode=2"
    keys = key_file(tmp_path_factory.mktemp("keys"))
    arguments = (
        *("--replicas", "3", "--replica-roles", asked, "--model", MODEL),
        *("--chips", "1", "--clock", "dilated:10", "--max-model-len", "1024"),
        *("--max-num-batched-tokens", str(STEP_TOKENS)),
        *("--api-keys", str(keys)),
    )
    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready(START_S)
        server.wait_until(lambda: ready(server) == 3, "all replicas", timeout_s=START_S)
        yield server


@pytest.fixture(autouse=True)
def own_environment(service: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(service, monkeypatch)


@pytest.fixture(scope="module")
def alone(service: ServerProcess) -> list[str]:
    """The texts of one engine that has the whole request, as one about several prompts is."""
    made = []
    for number in range(8):
        path, body = asked(number)
        whole = {"prompt": [body["prompt"]]} if "prompt" in body else {"n": 2}
        answer = httpx.post(
            f"{service.url}/v1/{path}",
            json=body | whole | {"stream": False},
            headers=KEY,
            timeout=300,
            trust_env=False,
        )
        choice = answer.json()["choices"][0]
        made.append(choice["message"]["content"] if "message" in choice else choice["text"])
    assert transfers(service) == [0, 0, 0]
    return made


def transfers(service: ServerProcess) -> list[float]:
    return [metric(service, f'{TRANSFERS}{{replica="{number}"}}') for number in range(3)]


def killed(service: ServerProcess, number: int) -> int:
    pid = replicas(service)[number].pid
    assert pid is not None
    return pid


def test_texts_are_those_of_one_engine_and_the_kv_goes_between_two(
    service: ServerProcess, alone: list[str]
) -> None:
    assert asyncio.run(texts(service)) == alone
    service.wait_until(lambda: transfers(service)[0] >= 8, "the sender's count")
    assert sum(transfers(service)[1:]) == 8, "what was pushed too late is read, and sent twice"
    assert [each.role for each in replicas(service)] == ["prefill", "decode", "decode"]


def test_streams_of_a_killed_replica_that_decodes_go_on(
    service: ServerProcess, alone: list[str]
) -> None:
    service.look()
    assert asyncio.run(texts(service, kills=killed(service, 1))) == alone
    assert metric(service, "ultraserve_broken_streams_total") == 0
    service.wait_until(lambda: ready(service) == 3, "the replica again", timeout_s=START_S)


def test_a_killed_replica_that_prefills_costs_nothing(
    service: ServerProcess, alone: list[str]
) -> None:
    os.kill(killed(service, 0), signal.SIGKILL)
    assert asyncio.run(texts(service)) == alone, "those that decode compute prompts meanwhile"
    service.wait_until(lambda: ready(service) == 3, "the replica again", timeout_s=START_S)
    assert asyncio.run(texts(service)) == alone
    service.wait_until(lambda: transfers(service)[0] >= 8, "it prefills again")


def test_a_drained_replica_that_prefills_gets_no_prompts(
    service: ServerProcess, alone: list[str]
) -> None:
    address = ("--address", f"127.0.0.1:{service.control_port}", "--replica", "0")
    before = transfers(service)[0]
    assert main(["engine", "drain", *address]) == 0
    service.wait_until(lambda: ready(service) == 2, "the drain")
    assert asyncio.run(texts(service)) == alone
    assert transfers(service)[0] == before
    assert main(["engine", "undrain", *address]) == 0


def roles(service: ServerProcess) -> list[str | None]:
    return [each.role for each in replicas(service)]


def set_role(service: ServerProcess, number: int, role: str) -> int:
    address = ("--address", f"127.0.0.1:{service.control_port}", "--replica", str(number))
    return main(["engine", "set_role", *address, "--role", role])


def test_an_operators_changes_in_the_middle_change_no_text(
    service: ServerProcess, alone: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def changed() -> list[str]:
        streams = asyncio.create_task(texts(service))
        for number, role in ((1, "prefill"), (0, "decode"), (0, "both"), (1, "decode")):
            await asyncio.sleep(3.0)
            assert await asyncio.to_thread(set_role, service, number, role) == 0
        return await streams

    assert asyncio.run(changed()) == alone
    assert roles(service) == ["both", "decode", "decode"]
    assert capsys.readouterr().out.splitlines()[:2] == ["rank 0: prefill", "rank 0: decode"]
    assert set_role(service, 0, "prefill") == 0
    assert set_role(service, 0, "decode") != 0, "no other one prefills"
    assert "no other replica prefills" in capsys.readouterr().err
    before = transfers(service)[0]
    assert asyncio.run(texts(service)) == alone
    service.wait_until(lambda: transfers(service)[0] == before + 8, "the sender's count")


def long_prompt(number: int) -> str:
    return " ".join(f"{number} {word}" for word in range(110))


async def long_texts(service: ServerProcess, *, until: list[str]) -> dict[int, str]:
    """The texts of long prompts, so many at a time, until replicas have these roles."""
    made: dict[int, str] = {}
    numbers = iter(range(10_000))

    async def client(http: httpx.AsyncClient) -> None:
        while await asyncio.to_thread(roles, service) != until:
            number = next(numbers)
            made[number] = await long_text(http, service, long_prompt(number))

    async with httpx.AsyncClient(headers=KEY, timeout=600.0, trust_env=False) as http:
        async with asyncio.timeout(600.0):
            await asyncio.gather(*(client(http) for _ in range(PROMPTS)))
    return made


async def long_text(
    http: httpx.AsyncClient, service: ServerProcess, prompt: str | list[str]
) -> str:
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0.0}
    answer = await http.post(f"{service.url}/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] > STEP_TOKENS
    text: str = answer.json()["choices"][0]["text"]
    return text


@pytest.mark.parametrize("service", ["auto,"], indirect=True)
def test_roles_follow_the_load_when_prompts_grow_and_back(
    service: ServerProcess, alone: list[str]
) -> None:
    assert roles(service) == ["prefill", "decode", "decode"]
    made = asyncio.run(long_texts(service, until=["prefill", "prefill", "decode"]))
    assert len(made) >= PROMPTS

    async def whole() -> dict[int, str]:
        async with httpx.AsyncClient(headers=KEY, timeout=600.0, trust_env=False) as http:
            asked = [(n, long_text(http, service, [long_prompt(n)])) for n in list(made)[:4]]
            return {number: await text for number, text in asked}

    for number, text in asyncio.run(whole()).items():
        assert made[number] == text
    for _ in range(10):
        assert asyncio.run(texts(service)) == alone
        if roles(service) == ["prefill", "decode", "decode"]:
            break
    assert roles(service) == ["prefill", "decode", "decode"], "few prompts need one"
    changes = "ultraserve_replica_role_changes_total"
    assert metric(service, f'{changes}{{replica="1"}}') >= 2
