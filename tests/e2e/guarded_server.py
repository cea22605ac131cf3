"""A server with TLS, limited keys and every port; and clients of each."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import trustme
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_status import rpc_status
from smg_grpc_proto import vllm_engine_pb2 as pb  # type: ignore[import-untyped]
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc  # type: ignore[import-untyped]

from serving.access.secret import draw_secret, hash_of
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started
from tests.e2e.span_collector import HTTP, SOON, SpanCollector

MODEL = "qwen3-30b-a3b"
CONTEXT_TOKENS = 4096
SEATS = 4
BODY_BYTES_MAX = 100_000
DRAIN_WALL_S = 60

KEYS = """
[[key]]
name = "alice"
hash = "{alice}"
requests_per_minute = 6000
tokens_per_minute = 1_000_000

[[key]]
name = "bob"
hash = "{bob}"
requests_per_minute = 2

[[key]]
name = "night"
hash = "{night}"
class = "batch"

[[key]]
name = "operator"
hash = "{operator}"
scopes = ["control"]
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardedServer:
    server: ServerProcess
    grpc_port: int
    secrets: dict[str, str]
    authority: trustme.CA
    authority_file: Path

    def http(self, key: str | None = "alice", *, verify: Any = None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {self.secrets.get(key, key)}"}
        trusted = str(self.authority_file) if verify is None else verify
        return httpx.Client(
            base_url=self.url, headers=headers, verify=trusted, timeout=120, trust_env=False
        )

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.server.port}"

    def metadata(self, key: str | None) -> list[tuple[str, str]]:
        if key is None:
            return []
        return [("authorization", f"Bearer {self.secrets.get(key, key)}")]

    @contextlib.contextmanager
    def channel(self, authority: trustme.CA | None = None) -> Iterator[grpc.Channel]:
        root = (authority or self.authority).cert_pem.bytes()
        credentials = grpc.ssl_channel_credentials(root_certificates=root)
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.secure_channel(f"{HOST}:{self.grpc_port}", credentials, options) as channel:
            yield channel

    @contextlib.contextmanager
    def engine(self) -> Iterator[Any]:
        with self.channel() as channel:
            yield pb_grpc.VllmEngineStub(channel)

    def health(self, service: str = "") -> str:
        with self.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def control(self, key: str | None = "operator") -> ControlClient:
        secret = None if key is None else self.secrets.get(key, key)
        address = ControlAddress(port=self.server.control_port)
        return ControlClient(address, timeout_s=60, key=secret)


@contextlib.contextmanager
def guarded_server(folder: Path, spans: SpanCollector) -> Iterator[GuardedServer]:
    """A ready server that sends its spans over HTTP."""
    authority = trustme.CA()
    files = {name: folder / f"{name}.pem" for name in ("authority", "certificate", "key")}
    certificate = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(files["authority"])
    certificate.cert_chain_pems[0].write_to_path(files["certificate"])
    certificate.private_key_pem.write_to_path(files["key"])
    files["key"].chmod(0o600)
    listed = {name: draw_secret() for name in ("alice", "bob", "night", "operator")}
    keys = folder / "keys.toml"
    keys.write_text(KEYS.format(**{name: hash_of(secret) for name, secret in listed.items()}))
    keys.chmod(0o600)
    flag, grpc_port = draw_secret(), free_port()
    arguments = (
        *("--model", MODEL, "--chips", "2", "--tp", "2", "--clock", "dilated:10"),
        *("--max-num-batched-tokens", "512", "--max-model-len", str(CONTEXT_TOKENS)),
        *("--max-num-seqs", str(SEATS), "--api-key", flag),
        *("--grpc-port", str(grpc_port), "--api-keys", str(keys)),
        *("--tls-cert", str(files["certificate"]), "--tls-key", str(files["key"])),
        *("--max-body-bytes", str(BODY_BYTES_MAX), "--drain-timeout", str(DRAIN_WALL_S)),
        *("--otlp-traces-endpoint", spans.http_endpoint),
    )
    with started(ULTRASERVE, *arguments, environment=SOON | HTTP) as server:
        guarded = GuardedServer(
            server=server,
            grpc_port=grpc_port,
            secrets=listed | {"flag": flag},
            authority=authority,
            authority_file=files["authority"],
        )
        server.wait_until(lambda: _is_ready(guarded), "readiness")
        yield guarded


def _is_ready(guarded: GuardedServer) -> bool:
    with contextlib.suppress(httpx.TransportError), guarded.http(None) as client:
        return client.get("/readyz").is_success
    return False


def asking(request_id: str, tokens: list[int], **params: Any) -> pb.GenerateRequest:
    """A streamed request that gets all its tokens."""
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=tokens),
        sampling_params=pb.SamplingParams(ignore_eos=True, **params),
        stream=True,
    )


def token_ids(answers: Any) -> list[int]:
    ids: list[int] = []
    for answer in answers:
        if answer.HasField("chunk"):
            ids += answer.chunk.token_ids
    return ids


def details(error: grpc.RpcError) -> dict[str, Any]:
    """google.rpc's details of a failed call, by type name."""
    status = rpc_status.from_call(error)
    assert status is not None, "no details"
    found = {}
    for packed in status.details:
        name = packed.type_url.rpartition(".")[2]
        found[name] = getattr(error_details_pb2, name)()
        assert packed.Unpack(found[name])
    return found
