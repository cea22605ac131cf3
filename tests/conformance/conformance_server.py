"""The clients' server, as an operator starts it: keys, both protocols, and tools on."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from emulator.data import weights_directory
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started

MODEL = "qwen3-30b-a3b"
CONTEXT_TOKENS = 4096
DILATION = 5  # text comes quickly, and two idle cores keep up with what the clients here ask for
BODY_BYTES_MAX = 1_000_000
REQUESTS_PER_MINUTE = 20  # emulated, of the key that is meant to run out


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceServer:
    """Its addresses and keys.

    Attributes:
        limited_key: may begin `REQUESTS_PER_MINUTE` requests.
        single_key: may have one request at a time.
        folder: for the clients' files.
    """

    process: ServerProcess
    grpc_address: str
    key: str
    limited_key: str
    single_key: str
    tokenizer: Path
    folder: Path

    @property
    def url(self) -> str:
        return self.process.url

    def environment(self) -> dict[str, str]:
        return {
            "ULTRASERVE_URL": self.url,
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "LIMITED_API_KEY": self.limited_key,
            "SINGLE_API_KEY": self.single_key,
            "REQUESTS_PER_MINUTE": str(REQUESTS_PER_MINUTE),
            "SERVED_MODEL": MODEL,
            "CONTEXT_TOKENS": str(CONTEXT_TOKENS),
            "BODY_BYTES_MAX": str(BODY_BYTES_MAX),
            "TOKENIZE_PATH": "/../tokenize",  # from below /v1
            "HF_HUB_OFFLINE": "1",
            "NO_PROXY": HOST,
        }

    def metrics(self) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.get(f"{self.url}/metrics", headers=headers, timeout=30)


def _created_key(name: str, file: Path, *limits: str) -> str:
    command = [*ULTRASERVE, "key", "create", name, "--file", str(file), *limits]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def conformance_server(
    weights: str = "small-moe", *arguments: str, dilation: float = DILATION, keys: bool = True
) -> Iterator[ConformanceServer]:
    """Start one with bundled weights and wait until it is ready; `arguments` come after its own.

    Without `keys` it needs none, as behind a gateway, and its keys open nothing.
    """
    with tempfile.TemporaryDirectory(prefix="conformance") as made:
        folder = Path(made)
        key_file = folder / "keys.toml"
        key = _created_key("conformance", key_file)
        limits = ("--requests-per-minute", str(REQUESTS_PER_MINUTE))
        limited_key = _created_key("limited", key_file, *limits)
        single_key = _created_key("single", key_file, "--concurrent", "1")
        grpc_port = free_port()
        settled = (
            *("--model", MODEL, "--chips", "2", "--weights", weights),
            *("--max-num-batched-tokens", "512", "--max-model-len", str(CONTEXT_TOKENS)),
            *("--clock", f"dilated:{dilation}", "--grpc-port", str(grpc_port)),
            *(("--api-keys", str(key_file)) if keys else ()),
            *("--max-body-bytes", str(BODY_BYTES_MAX)),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            "--disable-uvicorn-access-log",
        )
        with started(ULTRASERVE, *settled, *arguments) as process:
            process.wait_ready()
            yield ConformanceServer(
                process=process,
                grpc_address=f"{HOST}:{grpc_port}",
                key=key,
                limited_key=limited_key,
                single_key=single_key,
                tokenizer=weights_directory(weights),
                folder=folder,
            )
