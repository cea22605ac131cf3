"""`serve --front smg`: clients of a native server before the engine, and what holds across it."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serving.wire.control_call import DRAIN_ENGINE, UNDRAIN_ENGINE
from tests.benchmarks.front_arguments import front_arguments
from tests.e2e.gateway_process import find_gateway
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_answers import metrics
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

GATEWAY = find_gateway()

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(GATEWAY is None, reason="needs smg (make gateway-deps)"),
]

MODEL = "qwen3-30b-a3b"
NAMES = (MODEL, "another/name")
KEY, OTHER = "sk-of-a-client", "sk-of-another"
CONTEXT_TOKENS = 512
SEATS, QUEUE = 16, 8
REQUESTS_MAX = 4 * SEATS + QUEUE
SEQUENCES_MAX = 128
"""Of a request, which smg takes."""

ADMINISTRATION = (
    *(("POST", "/workers"), ("DELETE", "/workers/a"), ("GET", "/workers")),
    *(("POST", "/v1/tokenizers"), ("POST", "/flush_cache")),
)
GONE_WITHIN_S = 60.0
"""The front keeps its port for 5 s after a signal, and takes its time on a busy host."""


KILLED_WITHIN_S = 4.0
"""Less than the front takes to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontedServer:
    """A server and its front's address."""

    process: ServerProcess
    url: str

    def front(self) -> psutil.Process:
        """The front's process."""
        children = psutil.Process(self.process.pid).children()
        (found,) = (each for each in children if "smg" in " ".join(each.cmdline()))
        return found

    def ask(self, path: str = "/v1/completions", key: str = KEY, **body: Any) -> httpx.Response:
        """Ask the front."""
        return ask(self.url, path, key, **body)


def ask(url: str, path: str = "/v1/completions", key: str = KEY, **body: Any) -> httpx.Response:
    asked = {"model": MODEL, "max_tokens": 8, "ignore_eos": True, **body}
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}{path}", json=asked, headers=headers, timeout=300, trust_env=False)


@pytest.fixture(scope="module")
def fronted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontedServer]:
    template = tmp_path_factory.mktemp("template") / "words.jinja"
    template.write_text("{% for each in messages %}" + 40 * "sea " + "{% endfor %}")
    yield from fronts("--chat-template", str(template))


@pytest.fixture
def ending() -> Iterator[FrontedServer]:
    yield from fronts()


@pytest.fixture(scope="module")
def keyless() -> Iterator[FrontedServer]:
    yield from fronts(keys=())


def fronts(*more: str, keys: tuple[str, ...] = (KEY, OTHER)) -> Iterator[FrontedServer]:
    assert GATEWAY is not None
    front = front_arguments(Path(GATEWAY))
    with started(
        ULTRASERVE,
        *("--model", MODEL, "--weights", "none", "--chips", "4", "--engine", "fast"),
        *("--clock", "dilated:2", "--max-model-len", str(CONTEXT_TOKENS)),
        *(
            "--served-model-name",
            *NAMES,
            "--queue-requests",
            str(QUEUE),
            "--max-num-seqs",
            str(SEATS),
        ),
        *(("--api-key", *keys) if keys else ()),
        *more,
        *front.arguments,
        environment=front.environment,
    ) as process:
        process.wait_ready()
        front.wait_ready()
        assert front.url is not None
        yield FrontedServer(process=process, url=front.url)


def running(process: ServerProcess) -> float:
    return metrics(process, KEY)["vllm:num_requests_running"]


def test_both_ports_answer_from_one_engine(fronted: FrontedServer) -> None:
    direct = ask(fronted.process.url, prompt="The sea is", temperature=0).json()
    answers = [fronted.ask(prompt="The sea is", temperature=0, model=name).json() for name in NAMES]
    asked = {"messages": [{"role": "user", "content": "The sea?"}]}
    chat = fronted.ask("/v1/chat/completions", **asked)
    chat_direct = ask(fronted.process.url, "/v1/chat/completions", **asked)

    told = {answer["choices"][0]["text"] for answer in (direct, *answers)}
    assert len(told) == 1, "greedy words of one prompt"
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {8}
    assert chat.json()["choices"][0]["finish_reason"] == "length"
    tokens = [each.json()["usage"]["prompt_tokens"] for each in (chat, chat_direct)]
    assert tokens[0] == tokens[1] >= 40, "the server's own template"


def test_the_front_asks_for_the_server_s_keys_which_no_command_line_shows(
    fronted: FrontedServer,
) -> None:
    statuses = [fronted.ask(prompt="a", key=key).status_code for key in (KEY, OTHER, "sk-no")]

    assert statuses == [200, 200, 401]
    assert not any(KEY in word for word in fronted.front().cmdline())


def test_what_the_engine_cannot_compute_ends_the_request_alone(fronted: FrontedServer) -> None:
    scores = fronted.ask(prompt="a", logprobs=1)
    long = fronted.ask(prompt="word " * CONTEXT_TOKENS)
    fits = fronted.ask(prompt="a", max_tokens=2 * CONTEXT_TOKENS)

    assert [scores.status_code, long.status_code] == [500, 500]
    used = fits.json()["usage"]
    assert used["total_tokens"] == CONTEXT_TOKENS
    assert fronted.ask(prompt="a").status_code == 200
    assert "of the front is refused: logprobs: not with" in fronted.process.log()


def test_what_the_engine_cannot_read_ends_the_request_alone(fronted: FrontedServer) -> None:
    wrong = {"text": "hi", "sampling_params": {"max_new_tokens": 4, "temperature": 99}}

    refused = fronted.ask("/generate", **wrong)

    assert refused.status_code >= 400
    assert fronted.ask(prompt="a").status_code == 200
    assert ask(fronted.process.url, prompt="a").status_code == 200
    assert "of the front is refused: temperature" in fronted.process.log()


def test_a_stream_that_is_refused_says_so_by_a_chunk(fronted: FrontedServer) -> None:
    refused = fronted.ask(prompt="a", logprobs=1, stream=True)

    chunks = [chunk for chunk in refused.text.split("\n\n") if chunk]
    assert (refused.status_code, chunks[-1]) == (200, "data: [DONE]")
    assert chunks[0].startswith('data: {"error"')


def test_sequences_count_not_requests(fronted: FrontedServer) -> None:
    fits = fronted.ask(prompt="a", n=8)
    many = fronted.ask(prompt="a", n=SEQUENCES_MAX, max_tokens=400)

    assert (fits.status_code, many.status_code) == (200, 500)
    assert len(fits.json()["choices"]) == 8
    assert f"expected below {REQUESTS_MAX}" in fronted.process.log()
    fronted.process.wait_until(lambda: running(fronted.process) == 0, "rest")
    assert fronted.ask(prompt="a").status_code == 200


def test_a_drained_engine_takes_nothing_from_the_front(fronted: FrontedServer) -> None:
    with control_of(fronted.process) as control:
        control.call(DRAIN_ENGINE)
        refused = fronted.ask(prompt="a")
        control.call(UNDRAIN_ENGINE)

    assert refused.status_code == 500
    assert fronted.ask(prompt="a").status_code == 200


@pytest.mark.parametrize("server", ["fronted", "keyless"])
def test_no_client_administers_the_front(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server).url
    bodies = {"url": "http://127.0.0.1:1", "name": "a", "source": "/etc"}

    statuses = {
        (method, path, key): httpx.request(
            *(method, f"{url}{path}"),
            json=bodies,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
        ).status_code
        for method, path in ADMINISTRATION
        for key in (KEY, OTHER, "")
    }

    assert set(statuses.values()) == {401}, statuses


def test_the_server_s_metrics_count_the_front_s_tokens_and_come_to_rest(
    fronted: FrontedServer,
) -> None:
    def queried() -> float:
        return metrics(fronted.process, KEY)["vllm:prefix_cache_queries_total"]

    before = queried()
    for _ in range(3):
        fronted.ask(prompt="The wind and the ship")

    fronted.process.wait_until(lambda: running(fronted.process) == 0, "rest")
    assert queried() > before


def test_streams_of_the_front_end_by_themselves_when_the_server_is_told_to(
    ending: FrontedServer,
) -> None:
    with ThreadPoolExecutor() as pool:
        streams = [
            pool.submit(ending.ask, prompt="a", max_tokens=400, stream=True) for _ in range(4)
        ]
        ending.process.wait_until(lambda: running(ending.process) == 4, "streams")
        front = ending.front()
        ending.process.signal(signal.SIGTERM)
        texts = [each.result().text for each in streams]
        code = ending.process.wait_end()

    assert code == 0
    for text in texts:
        *_, last, done = text.strip().split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert not front.is_running()


def test_a_server_without_its_front_ends(ending: FrontedServer) -> None:
    os.kill(ending.front().pid, signal.SIGKILL)

    assert ending.process.wait_end() == 1
    assert "the front is gone, and the server ends" in ending.process.log()


def test_nothing_is_left_of_a_killed_server(ending: FrontedServer) -> None:
    processes = psutil.Process(ending.process.pid).children(recursive=True)
    front = ending.front()
    with ThreadPoolExecutor() as pool:
        stream = pool.submit(ending.ask, prompt="a", max_tokens=500, stream=True)
        ending.process.wait_until(lambda: running(ending.process) == 1, "a stream")

        os.kill(ending.process.pid, signal.SIGKILL)

        front.wait(timeout=KILLED_WITHIN_S)
        with pytest.raises(httpx.TransportError):
            stream.result()

    _, left = psutil.wait_procs(processes, timeout=GONE_WITHIN_S)
    assert left == []
