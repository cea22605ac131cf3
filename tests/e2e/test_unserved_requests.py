"""A server as a user starts it, without weights: tools and log-probabilities work unasked, limits
hold, and what cannot be served is told so in every protocol. The last test ends its engine.
"""

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from openai import OpenAI
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc  # type: ignore[import-untyped]

from emulator.specs.fault import Fault, FaultKind
from serving.access.secret import draw_secret, hash_of
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from tests.e2e.guarded_server import asking
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "gpt-oss-20b"
PROMPT = [151, 9, 34, 27, 500, 3]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paints.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}},
            "required": ["colour"],
        },
    },
}
KEYS = """
[[key]]
name = "alice"
hash = "{alice}"
tokens_per_minute = 2000
concurrent = 32

[[key]]
name = "bob"
hash = "{bob}"

[[key]]
name = "operator"
hash = "{operator}"
scopes = ["control"]
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    server: ServerProcess
    grpc_port: int
    secrets: dict[str, str]

    def post(self, path: str, key: str = "bob", **body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.secrets[key]}"}
        url = f"{self.server.url}/v1/{path}"
        return httpx.post(
            url, json={"model": MODEL} | body, headers=headers, timeout=60, trust_env=False
        )

    def control(self) -> ControlClient:
        address = ControlAddress(port=self.server.control_port)
        return ControlClient(address, timeout_s=60, key=self.secrets["operator"])

    def call_error(self) -> grpc.RpcError:
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"{HOST}:{self.grpc_port}", options) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            metadata = [("authorization", f"Bearer {self.secrets['bob']}")]
            with pytest.raises(grpc.RpcError) as raised:
                list(stub.Generate(asking("r", PROMPT, max_tokens=4), metadata=metadata))
        return raised.value


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    secrets = {name: draw_secret() for name in ("alice", "bob", "operator")}
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS.format(**{name: hash_of(secret) for name, secret in secrets.items()}))
    keys.chmod(0o600)
    grpc_port = free_port()
    arguments = (
        *("--model", MODEL, "--chips", "1", "--weights", "none", "--clock", "dilated:4"),
        *("--max-model-len", "4096", "--max-num-seqs", "32"),
        *("--grpc-port", str(grpc_port), "--api-keys", str(keys)),
    )
    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready()
        yield Served(server=server, grpc_port=grpc_port, secrets=secrets)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    key = served.secrets["bob"]
    with OpenAI(base_url=f"{served.server.url}/v1", api_key=key, max_retries=0) as made:
        yield made


@pytest.mark.parametrize("n", [60, "60"])
def test_a_limit_counts_what_would_run(served: Served, n: Any) -> None:
    answer = served.post("completions", "alice", prompt=PROMPT, max_tokens=100, n=n)

    assert answer.status_code == 429
    assert answer.json()["error"]["code"] in ("tokens_per_minute", "concurrent")
    assert int(answer.headers["retry-after"]) > 0


def test_prompts_are_echoed_with_log_probabilities(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, echo=True, logprobs=3, max_tokens=4, temperature=0.0
    )

    (choice,) = answer.choices
    found = choice.logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.tokens is not None
    assert found.top_logprobs is not None
    assert len(found.tokens) == len(PROMPT) + 4
    assert found.token_logprobs[0] is None
    for logprob, top in zip(found.token_logprobs[-4:], found.top_logprobs[-4:], strict=True):
        assert logprob == max(top.values())  # a greedy token is the likeliest of its scores
    bare = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0.0)
    assert choice.text.endswith(bare.choices[0].text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice",
    [None, "none", "auto", "required", {"type": "function", "function": {"name": "paint"}}],
)
def test_tools_work_unasked(client: OpenAI, choice: Any, stream: bool) -> None:
    given = {} if choice is None else {"tool_choice": choice}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Paint it."}],
        tools=[TOOL],
        max_tokens=200,
        temperature=0.0,
        stream=stream,
        **given,
    )

    if stream:
        deltas = [part.choices[0].delta for part in answer if part.choices]
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        names = "".join(call.function.name or "" for call in calls if call.function)
        arguments = "".join(call.function.arguments or "" for call in calls if call.function)
        content = "".join(delta.content or "" for delta in deltas)
    else:
        message = answer.choices[0].message
        found = message.tool_calls or []
        names = "".join(call.function.name for call in found)
        arguments = "".join(call.function.arguments for call in found)
        content = message.content or ""
    if choice in (None, "none", "auto"):
        assert content  # made-up words; a call of a tool by themselves they are not
        return
    assert names.startswith("paint")
    assert json.JSONDecoder().raw_decode(arguments)[0]["colour"] in ("red", "green")


def test_a_heavy_schema_stalls_nobody(served: Served) -> None:
    """Beside a client that reads tokens: the heaviest that is taken, and one that is not."""
    gaps: list[float] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            began_s = time.monotonic()
            served.post("completions", prompt=PROMPT, max_tokens=4).raise_for_status()
            gaps.append(time.monotonic() - began_s)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        time.sleep(3.0)
        alone = list(gaps)
        gaps.clear()
        for number in range(3):
            values = [f"value-{number}-{each}" for each in range(5_000)]
            schema = {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"enum": values}},
            }
            asked = {"messages": [{"role": "user", "content": "x"}], "response_format": schema}
            answer = served.post("chat/completions", max_tokens=8, **asked)
            assert answer.status_code == 200, answer.text
        values = [f"value-{each}" for each in range(50_000)]
        began_s = time.monotonic()
        answer = served.post(
            "completions", prompt=PROMPT, structured_outputs={"json": {"enum": values}}
        )
        refused_s = time.monotonic() - began_s
    finally:
        over.set()
        reader.join()
    print(
        f"alone median {statistics.median(alone):.3f} s, max {max(alone):.3f} s; beside schemas "
        f"median {statistics.median(gaps):.3f} s, max {max(gaps):.3f} s; refused in {refused_s:.3f}"
    )
    assert answer.status_code == 400, answer.text
    assert "weight" in answer.json()["error"]["message"]
    assert max(gaps) < 20 * max(alone)  # it was 23 s and more


@pytest.mark.parametrize("stream", [False, True])
def test_no_rank_up_is_told_and_then_is_over(served: Served, stream: bool) -> None:
    with served.control() as control:
        control.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0))
        try:
            for path, body in (
                ("completions", {"prompt": PROMPT}),
                ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                ("responses", {"input": "x"}),
            ):
                answer = served.post(path, stream=stream, **body)
                assert answer.status_code == 503, answer.text
                error = answer.json()["error"]
                assert (error["code"], error["message"]) == ("no_rank_up", "no rank is up")
                assert int(answer.headers["retry-after"]) > 0
            failed = served.call_error()
            assert failed.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            control.call(control_call.HEAL, chip=0)
    end_s = time.monotonic() + 60
    while (answer := served.post("completions", prompt=PROMPT, max_tokens=2)).status_code != 200:
        assert answer.status_code == 503
        assert time.monotonic() < end_s, answer.text
        time.sleep(0.2)  # polls another process


def test_an_engine_that_is_gone_is_told_until_the_server_ends(served: Served) -> None:
    """Streams that wait for their first token meet it too; once it ends, nobody listens."""
    engine = served.server.pid_of("EngineCore")
    answers: list[httpx.Response] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(served.post("completions", prompt=PROMPT, max_tokens=3_000))
        except httpx.TransportError as error:
            failures.append(error)

    waiting = [threading.Thread(target=ask) for _ in range(4)]
    for each in waiting:
        each.start()
    time.sleep(1.0)
    served.server.kill(engine)
    late: list[httpx.Response] = []
    with contextlib.suppress(httpx.TransportError):
        for _ in range(10_000):
            late.append(served.post("completions", prompt=PROMPT, max_tokens=3_000, stream=True))
    for each in waiting:
        each.join()
    assert Path(served.server.folder).exists()
    assert answers
    for answer in [*answers, *late]:
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] in ("engine_gone", "draining")
        assert int(answer.headers["retry-after"]) > 0
