"""An engine that prefills and one that decodes, over HTTP and behind smg: what a router does that
speaks the protocol of vLLM's NIXL connector.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.gateway_process import KEY as GATEWAY_KEY
from tests.e2e.gateway_process import find_gateway, gateway
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

SERVED = "small-moe"
STORY = "The engine that prefills wrote this once, and another one goes on: " * 4
ASKED = {"do_remote_decode": True, "do_remote_prefill": False} | dict.fromkeys(
    ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
)
"""As vLLM's toy proxy asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A server of a role, with its port for a gateway."""

    server: ServerProcess
    grpc_port: int

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.server.url}/v1/{path}", json=body, timeout=120, trust_env=False)
        answer.raise_for_status()
        return dict(answer.json())

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.server.url}/metrics", trust_env=False).text
        (line,) = (each for each in page.splitlines() if each.startswith(f"{name} "))
        return float(line.rsplit(" ", 1)[1])


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """One that prefills and one that decodes; the second alone is the aggregated server too."""
    key: Path = tmp_path_factory.mktemp("key") / "kv.key"
    key.write_text("k" * 40)
    key.chmod(0o600)
    with ExitStack() as stack:
        made = []
        for role in ("kv_producer", "kv_consumer"):
            config = {"kv_connector": "NixlConnector", "kv_role": role}
            grpc_port = free_port()
            server = stack.enter_context(
                started(
                    ULTRASERVE,
                    *("--chips", "1", "--served-model-name", SERVED, "--max-model-len", "2048"),
                    *("--clock", "dilated:10", "--grpc-port", str(grpc_port)),
                    *("--kv-key-file", str(key), "--kv-transfer-config", json.dumps(config)),
                    environment={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())},
                )
            )
            made.append(Engine(server=server, grpc_port=grpc_port))
        for each in made:
            each.server.wait_ready()
        prefills, decodes = made
        yield prefills, decodes


def bodies(path: str, words: str) -> dict[str, Any]:
    asked = {"model": SERVED, "max_tokens": 24, "temperature": 0}
    if path == "completions":
        return asked | {"prompt": words}
    return asked | {"messages": [{"role": "user", "content": words}]}


def text_of(answer: dict[str, Any]) -> str:
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def streamed(engine: Engine, path: str, body: dict[str, Any]) -> str:
    text = ""
    url = f"{engine.server.url}/v1/{path}"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                text += (
                    choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                )
    return text


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_proxys_two_requests_write_what_one_engine_writes(
    engines: tuple[Engine, Engine], path: str, streams: bool
) -> None:
    prefills, decodes = engines
    body = bodies(path, f"{path} {streams}: {STORY}")
    sent, taken = (each.metric("ultraserve_kv_transfers_total") for each in engines)

    first = prefills.ask(path, body | {"max_tokens": 1, "kv_transfer_params": ASKED})
    then = body | {"kv_transfer_params": first["kv_transfer_params"]}
    text = streamed(decodes, path, then) if streams else text_of(decodes.ask(path, then))

    assert text == text_of(prefills.ask(path, body)), "the one that prefills can do all of it"
    assert decodes.metric("ultraserve_kv_transfers_total") == taken + 1
    decodes.server.wait_until(
        lambda: prefills.metric("ultraserve_kv_transfers_total") == sent + 1, "the sender's count"
    )


@pytest.mark.skipif(find_gateway() is None, reason="needs smg (make gateway-deps)")
def test_smg_has_prompts_and_texts_apart(engines: tuple[Engine, Engine]) -> None:
    prefills, decodes = engines
    before = decodes.metric("ultraserve_kv_transfers_total")
    urls = [f"grpc://{HOST}:{each.grpc_port}" for each in engines]
    roles = ("--pd-disaggregation", "--prefill", urls[0], "--decode", urls[1])
    with gateway([], *roles) as front:
        front.wait_healthy(*urls)
        for path in ("completions", "chat/completions"):
            body = bodies(path, f"smg {path}: {STORY}")
            answer = httpx.post(
                f"{front.url}/v1/{path}",
                json=body,
                headers={"authorization": f"Bearer {GATEWAY_KEY}"},
                timeout=120,
                trust_env=False,
            )
            assert answer.status_code == 200, answer.text
            assert text_of(answer.json()) == text_of(prefills.ask(path, body))
    assert decodes.metric("ultraserve_kv_transfers_total") == before + 2


def test_wrong_parameters_are_one_line_that_names_the_field(
    engines: tuple[Engine, Engine],
) -> None:
    prefills, decodes = engines
    body = bodies("completions", f"wrong: {STORY}")
    first = prefills.ask("completions", body | {"max_tokens": 1, "kv_transfer_params": ASKED})
    wrong = first["kv_transfer_params"] | {"remote_port": "5600"}
    answer = httpx.post(
        f"{decodes.server.url}/v1/completions",
        json=body | {"kv_transfer_params": wrong},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 400
    words = answer.json()["error"]["message"]
    assert words.startswith("kv_transfer_params.remote_port='5600': expected 1 to 65535")
    assert text_of(decodes.ask("completions", body)), "it goes on"


def test_an_engine_that_is_killed_costs_the_other_ones_texts_nothing(
    engines: tuple[Engine, Engine],
) -> None:
    """The last test here: the engine that prefills is gone."""
    prefills, decodes = engines
    body = bodies("completions", f"killed: {STORY}")
    first = prefills.ask("completions", body | {"max_tokens": 1, "kv_transfer_params": ASKED})
    expected = text_of(prefills.ask("completions", body))
    os.killpg(prefills.server.pid, signal.SIGKILL)
    then = body | {"kv_transfer_params": first["kv_transfer_params"]}
    assert text_of(decodes.ask("completions", then)) == expected
    assert "is computed here, as its KV does not come" in decodes.server.log()
