"""`ultraserve serve --replicas 2`: two engines behind one address, one killed under load.

Three starts of an engine, and so slow: the service before small replicas is tested every day.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serving.access.control_key import find_control_key
from serving.access.secret import draw_secret, hash_of
from serving.commands.replicas import KEY_VARIABLE, read_replicas
from serving.main import main
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from serving.server.replicas.replica_list import ReplicaReport
from serving.wire import control_call
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.tray import MODEL
from tests.serving.plugin.other_weights import other_weights

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 48
SECRET = draw_secret()
KEY = {"Authorization": f"Bearer {SECRET}"}


def key_file(folder: Path) -> Path:
    """The service's keys: one, of `SECRET`."""
    keys = folder / "keys.toml"
    keys.write_text(f'[[key]]\nname = "alice"\nhash = "{hash_of(SECRET)}"\nconcurrent = 16\n')
    keys.chmod(0o600)
    return keys


def set_environment(service: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a command beside the service."""
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    for name, value in service.own_environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = key_file(tmp_path_factory.mktemp("keys"))
    arguments = (
        *("--replicas", "2", "--model", MODEL, "--chips", "1", "--clock", "dilated:10"),
        *("--max-model-len", "1024", "--api-keys", str(keys), "--replica-silence", "40"),
    )
    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready()
        server.wait_until(lambda: ready(server) == 2, "both replicas")
        yield server


@pytest.fixture(autouse=True)
def own_environment(service: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(service, monkeypatch)


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


async def texts(
    service: ServerProcess,
    *,
    kills: int | None = None,
    stops: int | None = None,
    midway: Callable[[], None] | None = None,
) -> list[str]:
    """The texts of eight streams; meanwhile the process `kills` is killed, or `stops` stopped, or
    `midway` called.
    """
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
        if stops is not None:
            await heard.wait()
            os.kill(stops, signal.SIGSTOP)
        if midway is not None:
            await heard.wait()
            await asyncio.to_thread(midway)
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
    assert metric(service, 'ultraserve_replays_total{begun="begun",reason="lost"}') >= 1
    assert metric(service, "ultraserve_broken_streams_total") == 0
    finished = 'ultraserve_admission_requests_total{class="interactive",outcome="finished"}'
    assert metric(service, finished) == 16
    service.wait_until(lambda: ready(service) == 2, "the replica again")
    assert replicas(service)[0].restarts == 1


def test_all_calls_go_through_one_address_to_the_replica_that_they_name(
    service: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ("--address", f"127.0.0.1:{service.control_port}")
    for number in (0, 1):
        assert main(["state", *address, "--replica", str(number)]) == 0
        assert f"chips from chip {number} on" in capsys.readouterr().out
    assert main(["state", *address]) == 2
    assert "replica=(none): expected 0 to 1" in capsys.readouterr().err
    fault = ["fault", "slow-chip", "--chip", "0", "--factor", "2"]
    assert main([*fault, *address, "--replica", "1"]) == 0
    capsys.readouterr()

    def open_faults() -> list[int]:
        listed = read_replicas(service.url).replicas
        return [each.figures.faults_open for each in listed if each.figures]

    service.wait_until(lambda: open_faults() == [0, 1], "the fault in the list")
    listed = read_replicas(service.url)
    assert listed.figures is not None
    assert (listed.figures.chips, listed.figures.ranks_up) == (2, 2)
    assert main(["fault", "heal", "--all", *address, "--replica", "1"]) == 0
    own = ("--address", f"127.0.0.1:{listed.replicas[1].control_port}")
    assert main(["state", *own]) != 0  # the service alone knows its replicas' key


def greedy(service: ServerProcess, prompt: str, tokens: int = 8) -> tuple[str, str, str]:
    """The replica, the text and the fingerprint of a greedy answer."""
    answer = httpx.post(
        f"{service.url}/v1/completions",
        json={"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0},
        headers=KEY,
        timeout=120.0,
        trust_env=False,
    )
    said = answer.json()
    named = answer.headers["x-ultraserve-replica"]
    return named, said["choices"][0]["text"], said["system_fingerprint"]


def test_prompts_go_where_their_beginning_is_held_by_events_and_not_where_it_was_sent(
    service: ServerProcess,
) -> None:
    long = " ".join(map(str, range(150)))
    named, *_ = greedy(service, long + " one", 1)
    assert [greedy(service, f"{long} {turn}", 1)[0] for turn in range(3)] == [named] * 3
    assert metric(service, hits_of(named)) > 0
    other = 1 - int(named)
    with connected_to(service, other) as client:
        client.call(control_call.DRAIN_ENGINE)
    service.wait_until(lambda: ready(service) == 1, "one drained")
    with connected_to(service, int(named)) as client:
        client.call(control_call.RESET_PREFIX_CACHE)
    assert greedy(service, "short", 1)[0] == named  # events come with a step
    with connected_to(service, other) as client:
        client.call(control_call.UNDRAIN_ENGINE)
    service.wait_until(lambda: ready(service) == 2, "both")
    with connected_to(service, int(named)) as client:
        client.call(control_call.DRAIN_ENGINE)
    service.wait_until(lambda: ready(service) == 1, "the other drained")
    assert greedy(service, long + " two", 1)[0] == str(other)
    with connected_to(service, int(named)) as client:
        client.call(control_call.UNDRAIN_ENGINE)
    service.wait_until(lambda: ready(service) == 2, "both again")
    # By what it was sent, the first would have as much of it as the other.
    assert [greedy(service, f"{long} {turn}", 1)[0] for turn in "abc"] == [str(other)] * 3


def hits_of(replica: str) -> str:
    labels = f'replica="{replica}",engine="0",model_name="{MODEL}"'
    return f"vllm:prefix_cache_hits_total{{{labels}}}"


def connected_to(service: ServerProcess, replica: int) -> ControlClient:
    key = find_control_key(service.control_port, service.own_environment)
    address = ControlAddress(port=service.control_port)
    return ControlClient(address, 10.0, key=key, replica=replica, patience_s=30.0)


def test_streams_of_a_replica_whose_engine_hangs_have_the_undisturbed_text(
    service: ServerProcess,
) -> None:
    undisturbed = asyncio.run(texts(service))
    root = replicas(service)[1].pid
    assert root is not None
    processes = psutil.Process(root).children(recursive=True)
    (engine,) = [each for each in processes if "EngineCore" in " ".join(each.cmdline())]

    assert asyncio.run(texts(service, stops=engine.pid)) == undisturbed
    assert metric(service, "ultraserve_broken_streams_total") == 0
    service.wait_until(lambda: ready(service) == 2, "the replica again")
    assert replicas(service)[1].restarts == 1


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
    _, text, fingerprint = greedy(service, "def f(x):", 16)
    assert "-v2-" in fingerprint

    for each in replicas(service):  # both: each answers next
        assert each.pid is not None
        os.kill(each.pid, signal.SIGKILL)
        service.wait_until(lambda: ready(service) == 1, "one gone")
        service.wait_until(lambda: ready(service) == 2, "the replica again")
        assert greedy(service, "def f(x):", 16)[1:] == (text, fingerprint)
    assert all(each.restarts >= 1 for each in replicas(service))


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

        # It cannot remove its own notes. The next service at its port writes them anew.
        for kind in ("key", "console"):
            (server.folder / "ultraserve" / f"control-{server.control_port}.{kind}").unlink()
        assert server.left_over(150.0) == []
