"""`ultraserve serve --replicas 2`: two engines behind one address, one killed under load.

Three starts of an engine, and so slow: the service before small replicas is tested every day.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.access.secret import draw_secret, hash_of
from serving.commands.replicas import KEY_VARIABLE, read_replicas
from serving.main import main
from serving.server.replicas.replica_list import ReplicaReport
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.tray import MODEL
from tests.serving.plugin.other_weights import other_weights

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 48
SECRET = draw_secret()
KEY = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f'[[key]]\nname = "alice"\nhash = "{hash_of(SECRET)}"\nconcurrent = 16\n')
    keys.chmod(0o600)
    arguments = (
        *("--replicas", "2", "--model", MODEL, "--chips", "1", "--clock", "dilated:10"),
        *("--max-model-len", "1024", "--api-keys", str(keys)),
    )
    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready()
        server.wait_until(lambda: ready(server) == 2, "both replicas")
        yield server


@pytest.fixture(autouse=True)
def own_environment(service: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a command beside the service."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    for name, value in service.own_environment.items():
        monkeypatch.setenv(name, value)


def replicas(service: ServerProcess) -> tuple[ReplicaReport, ...]:
    os.environ.setdefault(KEY_VARIABLE, SECRET)
    return read_replicas(service.url).replicas


def ready(service: ServerProcess) -> int:
    return sum(each.state == "ready" for each in replicas(service))


def asked(number: int) -> tuple[str, dict[str, Any]]:
    """A request, greedy or with a seed, by either API."""
    common = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    if number % 2:
        messages = [{"role": "user", "content": f"Say {number}."}]
        return "chat/completions", {**common, "messages": messages, "seed": number}
    return "completions", {**common, "prompt": f"def f{number}(x):", "temperature": 0.0, "n": 1}


async def texts(service: ServerProcess, *, kills: int | None = None) -> list[str]:
    """The texts of eight streams; the replica with process `kills` is killed meanwhile."""
    async with httpx.AsyncClient(headers=KEY, timeout=300.0, trust_env=False) as http:
        heard = asyncio.Event()

        async def text_of(number: int) -> str:
            path, body = asked(number)
            text, ids, ends = "", set(), []
            async with http.stream("POST", f"{service.url}/v1/{path}", json=body) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line[6:])
                    ids.add((event["id"], event["created"]))
                    for choice in event["choices"]:
                        text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                        ends.append(choice.get("finish_reason"))
                    if len(ends) > TOKENS // 4:
                        heard.set()
            assert len(ids) == 1
            assert [end for end in ends if end] == ["length"]
            return text

        streams = [asyncio.create_task(text_of(number)) for number in range(8)]
        if kills is not None:
            await heard.wait()
            os.kill(kills, signal.SIGKILL)
        return await asyncio.gather(*streams)


def metric(service: ServerProcess, sample: str) -> float:
    page = httpx.get(f"{service.url}/metrics", headers=KEY, trust_env=False).text
    (line,) = [line for line in page.splitlines() if line.startswith(f"{sample} ")]
    return float(line.rpartition(" ")[2])


def test_streams_of_a_killed_replica_have_the_undisturbed_text(service: ServerProcess) -> None:
    undisturbed = asyncio.run(texts(service))
    pid = replicas(service)[0].pid
    assert pid is not None
    service.look()

    assert asyncio.run(texts(service, kills=pid)) == undisturbed
    assert metric(service, 'ultraserve_replays_total{begun="begun"}') >= 1
    assert metric(service, "ultraserve_broken_streams_total") == 0
    finished = 'ultraserve_admission_requests_total{class="interactive",outcome="finished"}'
    assert metric(service, finished) == 16
    service.wait_until(lambda: ready(service) == 2, "the replica again")
    assert replicas(service)[0].restarts == 1


def test_all_replicas_get_other_weights_one_after_the_other(
    service: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = other_weights(tmp_path / "other", 1)
    assert main(["replicas", "publish", str(weights), "--url", service.url]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "replica 0: version 2",
        "replica 1: version 2",
    ]
    service.wait_until(lambda: ready(service) == 2, "both replicas open")
    answer = httpx.post(
        f"{service.url}/v1/completions",
        json={"model": MODEL, "prompt": "a", "max_tokens": 2},
        headers=KEY,
        timeout=60.0,
        trust_env=False,
    )
    assert "-v2-" in answer.json()["system_fingerprint"]


def test_the_end_leaves_nothing(service: ServerProcess) -> None:
    service.look()
    service.signal(signal.SIGTERM)

    assert service.wait_end() == 0
    assert service.left_over() == []


def test_replicas_of_a_killed_service_end() -> None:
    arguments = ("--replicas", "2", "--chips", "1", "--weights", "none", "--clock", "dilated:10")
    with started(ULTRASERVE, *arguments) as server:
        server.wait_until(lambda: server.runs_now("EngineCore"), "an engine")
        server.kill(server.pid)

        assert server.left_over(150.0) == []
