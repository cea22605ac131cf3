"""Tokens a second beside NVIDIA Dynamo's mocker: 128 streams, timing only, by turns in one run.

    python -m tests.benchmarks dynamo_mocker [--rounds N] [--seconds S]

Four servers, all started before the first turn: Dynamo's HTTP frontend before its mocker (both in
Rust) that waits for nothing; ours with the fast engine, whose clock is so fast that it waits for
nothing either, asked over vLLM's unmodified HTTP app; the same with two API processes; and the
public gateway smg (in Rust) before our engine (`ultraserve serve --front smg`). Their clients are
this process, 128 streams that each ask again when they have ended. A token is counted where its
text comes; processor time is that of the server's processes, and of the clients. The first run
builds Dynamo's and smg's environments.

A turn's rate is of a host that other work shares; the ratio is of the median turns. Dynamo keeps
its registry in a folder, so that it needs neither etcd nor NATS; its tokenizer is made here: its
mocker's tokens are beyond the bundled one's vocabulary.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import uvloop
from tokenizers import Tokenizer, models, pre_tokenizers

from emulator.data import SMALL_MOE_DIR
from tests.benchmarks.api_token_path import STREAMS, wait_at_rest
from tests.benchmarks.front_arguments import NO_FRONT, FrontArguments, front_arguments
from tests.benchmarks.stream_load import StreamConnection, StreamCounts, connected, post
from tests.conformance.pinned_environment import python_of
from tests.e2e.server_process import HOST, ULTRASERVE, free_port, started

TOKENS: Final = 512
PROMPT: Final = " ".join(f"w{number}" for number in range(10, 26))
SERVED: Final = "small_moe"

OURS: Final = (
    *("--model", "qwen3-30b-a3b", "--weights", "none", "--served-model-name", SERVED),
    *("--chips", "4", "--engine", "fast", "--clock", "dilated:0.001"),
    *("--max-model-len", "4096", "--max-num-seqs", "64", "--disable-uvicorn-access-log"),
)
_VOCABULARY: Final = 32_768
_READY_TIMEOUT_S: Final = 120.0
_BEGIN_S: Final = 2.0
"""A turn's streams have all begun by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server under load: its name, where and for which model it is asked, its processes."""

    name: str
    url: str
    model: str
    processes: tuple[psutil.Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Tokens a second, and processor microseconds of a token: the server's and the clients'.

    A server that is late joins tokens of a stream in a chunk.
    """

    per_s: float
    tokens_a_chunk: float
    server_us: float
    clients_us: float


@contextlib.contextmanager
def dynamo(folder: Path) -> Iterator[Peer]:
    """Dynamo's frontend and mocker, whose model's files are in `folder`."""
    python, port, model = str(python_of("dynamo")), free_port(), str(_made_model(folder / "model"))
    planes = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
    engine = ("--speedup-ratio", "0", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192")
    commands = (
        ("dynamo.mocker", "--model-path", model, *engine, "--num-gpu-blocks-override", "100000"),
        ("dynamo.frontend", "--http-host", HOST, "--http-port", str(port)),
    )
    environment = os.environ | {
        **{"HOME": str(folder), "DYN_FILE_KV": str(folder / "registry"), "DYN_LOG": "error"},
        **{"HF_HUB_OFFLINE": "1", "DYN_TCP_RPC_HOST": HOST, "DYN_SELF_HOST_METADATA": "0"},
    }
    processes = []
    with (folder / "log").open("w") as log:
        for module, *arguments in commands:
            command = (python, "-m", module, *arguments, *planes)
            processes.append(
                subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
            )
    try:
        url = f"http://{HOST}:{port}"
        _wait_served(url, model)
        shown = tuple(psutil.Process(each.pid) for each in processes)
        yield Peer(name="dynamo", url=url, model=model, processes=shown)
    finally:
        for each in processes:
            each.kill()
            each.wait()


def _made_model(folder: Path) -> Path:
    """A model's files with a vocabulary of words, in which every token has a text."""
    folder.mkdir()
    words = {f"w{number}": number for number in range(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    settings |= {"eos_token": "w1", "bos_token": "w2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((SMALL_MOE_DIR / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": _VOCABULARY}))
    shutil.copy(SMALL_MOE_DIR / "generation_config.json", folder)
    return folder


def _wait_served(url: str, model: str) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(f"{url}/v1/models") as answer,
        ):
            if any(each["id"] == model for each in json.load(answer)["data"]):
                return
        time.sleep(0.5)  # polls another program
    raise TimeoutError(f"{url} does not serve {model} after {_READY_TIMEOUT_S:.0f} s")


@contextlib.contextmanager
def ours(name: str, *arguments: str, front: FrontArguments = NO_FRONT) -> Iterator[Peer]:
    """Our server, at rest; asked at its front's address, if it has one."""
    asked = (*arguments, *front.arguments)
    with started(ULTRASERVE, *OURS, *asked, environment=front.environment) as server:
        server.wait_ready()
        front.wait_ready()
        first = psutil.Process(server.pid)
        wait_at_rest(first)
        shown = (first, *first.children(recursive=True))
        yield Peer(name=name, url=front.url or server.url, model=SERVED, processes=shown)


async def turn(peer: Peer, seconds: float) -> Turn:
    """Load one server."""
    counts = StreamCounts()
    connections = [await connected(peer.url, counts) for _ in range(STREAMS)]
    streams = [asyncio.ensure_future(_ask_on(each, peer, n)) for n, each in enumerate(connections)]
    while len(counts.first_chunk_s) < STREAMS:
        assert not counts.failures, (peer.name, counts.failures[:3])
        await asyncio.sleep(0.05)
    await asyncio.sleep(_BEGIN_S)
    chunks, began_s = counts.chunks, time.monotonic()
    server_s, clients_s = _spent_s(peer.processes), time.process_time()
    await asyncio.sleep(seconds)
    chunks, wall_s = counts.chunks - chunks, time.monotonic() - began_s
    server_s, clients_s = _spent_s(peer.processes) - server_s, time.process_time() - clients_s
    for stream, connection in zip(streams, connections, strict=True):
        stream.cancel()
        connection.close()
    assert not counts.failures, (peer.name, counts.failures[:3])
    tokens_a_chunk = counts.ended * TOKENS / counts.ended_chunks if counts.ended else 1.0
    tokens = chunks * tokens_a_chunk
    return Turn(
        per_s=tokens / wall_s,
        tokens_a_chunk=tokens_a_chunk,
        server_us=1e6 * server_s / tokens,
        clients_us=1e6 * clients_s / tokens,
    )


async def _ask_on(connection: StreamConnection, peer: Peer, number: int) -> None:
    asked = {"model": peer.model, "prompt": f"{PROMPT} w{number}", "max_tokens": TOKENS}
    asked |= {"ignore_eos": True, "stream": True}
    while await connection.send(post(peer.url, "/v1/completions", asked), TOKENS):
        pass


def _spent_s(processes: tuple[psutil.Process, ...]) -> float:
    times = [each.cpu_times() for each in processes]
    return sum(each.user + each.system for each in times)


def run(arguments: list[str]) -> None:
    """Print each turn, and each server's median beside Dynamo's."""
    parser = argparse.ArgumentParser(prog="dynamo_mocker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args(arguments)
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        peers = [
            held.enter_context(each)
            for each in (
                dynamo(folder),
                ours("vLLM's app"),
                ours("vLLM's app, 2 processes", "--api-server-count", "2"),
                ours("smg before the engine", front=front_arguments()),
            )
        ]
        turns: dict[str, list[Turn]] = {each.name: [] for each in peers}
        for _ in range(args.rounds):
            for peer in peers:
                found = uvloop.run(turn(peer, args.seconds))
                turns[peer.name].append(found)
                print(
                    f"{peer.name}: {found.per_s:,.0f} tokens/s, {found.tokens_a_chunk:.1f} a "
                    f"chunk; {found.server_us:.1f} us of the server's and {found.clients_us:.1f} "
                    "us of the clients' processor a token",
                    flush=True,
                )
    _print_ratios(turns)


def _print_ratios(turns: dict[str, list[Turn]]) -> None:
    """Of medians, to the first server's."""
    (their_rate, their_us), *_ = medians = [
        (
            statistics.median(each.per_s for each in of),
            statistics.median(each.server_us for each in of),
        )
        for of in turns.values()
    ]
    for name, (rate, spent_us) in zip(turns, medians, strict=True):
        print(
            f"{name}: {rate / their_rate:.2f} of Dynamo's tokens/s, "
            f"{spent_us / their_us:.2f} of its processor time a token"
        )


if __name__ == "__main__":
    run(sys.argv[1:])
