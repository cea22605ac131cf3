"""The attacked server, started as an operator would: keys, both protocols, the control service.

Its one chip computes nothing (`--weights none`): the targets are the layers before the engine.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import trustme

from tests.attacks.attack import Server
from tests.attacks.http1 import CHAT, COMPLETIONS
from tests.attacks.target import HOST, Target
from tests.e2e.server_process import ULTRASERVE, ServerProcess, free_port, started

MODEL: Final = "qwen3-30b-a3b"
ATTACKER_LIMITS: Final = (
    *("--requests-per-minute", "6000", "--tokens-per-minute", "60000"),
    *("--concurrent", "4"),
)
"""Limits that an operator gives to an untrusted key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedServer:
    """The server process and its addresses.

    Attributes:
        target: with the attacker's key, which has limits.
        honest: with a key without limits.
    """

    process: ServerProcess
    target: Target
    honest: Target


def _created_key(name: str, file: Path, *limits: str) -> str:
    command = [*ULTRASERVE, "key", "create", name, "--file", str(file), *limits]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _certificates(folder: Path) -> tuple[str, ...]:
    """Write an authority's and a server's; returns the arguments for the latter."""
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    certificate.private_key_pem.write_to_path(folder / "private.pem")
    (folder / "private.pem").chmod(0o600)
    return (
        *("--tls-cert", str(folder / "certificate.pem")),
        *("--tls-key", str(folder / "private.pem")),
    )


@contextlib.contextmanager
def attacked_server(kind: Server) -> Iterator[AttackedServer]:
    """Start one, wait until it is ready, and warm it up."""
    with tempfile.TemporaryDirectory(prefix="attacks") as made:
        folder = Path(made)
        keys = folder / "keys.toml"
        honest = _created_key("honest", keys)
        attacker = _created_key("attacker", keys, *ATTACKER_LIMITS)
        tls = _certificates(folder) if kind is Server.TLS else ()
        grpc_port = free_port()
        arguments = (
            *("--model", MODEL, "--chips", "1", "--weights", "none", "--clock", "dilated:1"),
            *("--max-model-len", "4096", "--grpc-port", str(grpc_port), "--api-keys", str(keys)),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--disable-uvicorn-access-log", *tls),
        )
        with started(ULTRASERVE, *arguments) as process:
            target = Target(
                http_port=process.port,
                grpc_port=grpc_port,
                control_port=process.control_port,
                console_port=process.control_port + 1,
                model=MODEL,
                key=attacker,
                authority=str(folder / "authority.pem") if tls else "",
            )
            served = AttackedServer(
                process=process, target=target, honest=replace(target, key=honest)
            )
            process.wait_until(lambda: _is_ready(target), "readiness")
            _warm(served.honest)
            yield served


def _client(target: Target) -> httpx.Client:
    scheme = "https" if target.authority else "http"
    return httpx.Client(
        base_url=f"{scheme}://{HOST}:{target.http_port}",
        headers={"authorization": target.authorization},
        verify=target.authority or False,
        timeout=60,
        trust_env=False,
    )


def _is_ready(target: Target) -> bool:
    with contextlib.suppress(httpx.TransportError), _client(target) as client:
        return client.get("/readyz").is_success
    return False


def _warm(target: Target) -> None:
    """Load everything that a first request loads, which would look like an attack's memory."""
    schema = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}}
    words = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    with _client(target) as client:
        for path, asked in (
            (COMPLETIONS, {"prompt": "a", "max_tokens": 4}),
            (COMPLETIONS, {"prompt": "a", "max_tokens": 4, "logprobs": 2, "stream": True}),
            (COMPLETIONS, {"prompt": "a", "max_tokens": 4, "structured_outputs": {"json": schema}}),
            (CHAT, words),
        ):
            client.post(path, json=asked)
        client.get("/metrics")
        client.get("/nowhere")
