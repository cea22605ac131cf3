"""TLS of the HTTP server as vLLM starts it with the arguments that our flags give."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trustme
from fastapi import FastAPI
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.launcher import serve_http
from vllm.utils.argparse_utils import FlexibleArgumentParser

from serving.access.renewed_context import RenewedContext
from serving.access.tls_files import TlsFiles
from serving.commands.gateway_arguments import GatewayOptions
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.http.bounded_protocol import HttpIngress, bound_connections
from serving.server.gateway.ingress_account import IngressAccount
from tests.e2e.server_process import free_port
from tests.serving.server.gateway.certificates import written

pytestmark = pytest.mark.long

RENEWED_S = 5.0
"""Wall seconds; many looks."""


@contextlib.asynccontextmanager
async def served(files: TlsFiles) -> AsyncIterator[str]:
    """An app behind vLLM's own start of uvicorn; gives its address, without the scheme."""
    options = GatewayOptions(settings=GatewaySettings(tls=files), warnings=())
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(options.vllm_arguments())

    @contextlib.asynccontextmanager
    async def bounded(app: FastAPI) -> AsyncIterator[None]:
        """As our lifespan has it: before uvicorn listens."""
        tls = RenewedContext(files, protocols=("http/1.1",), port="HTTP", ciphers=args.ssl_ciphers)
        ingress = HttpIngress(IngressAccount(), lambda _: "a key")
        bound_connections(app.state.server.config, ingress, tls.present)
        yield

    app = FastAPI(lifespan=bounded)
    app.state.engine_client = None
    app.get("/")(lambda: "reached")
    port = free_port()
    serving = asyncio.create_task(
        serve_http(
            app,
            None,
            host="127.0.0.1",
            port=port,
            log_level="critical",
            ssl_keyfile=args.ssl_keyfile,
            ssl_certfile=args.ssl_certfile,
            ssl_ca_certs=args.ssl_ca_certs,
            ssl_cert_reqs=args.ssl_cert_reqs,
            ssl_ciphers=args.ssl_ciphers,
        )
    )
    while not (hasattr(app.state, "server") and app.state.server.started):
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        app.state.server.should_exit = True
        await (await serving)


def trusting(authority: trustme.CA, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.configure_cert(context)
    return context


async def answers(address: str, context: ssl.SSLContext) -> bool:
    """Whether a new connection comes through."""
    async with httpx.AsyncClient(verify=context, timeout=5.0, trust_env=False) as client:
        try:
            answer = await client.get(f"https://{address}/")
        except httpx.TransportError:
            return False
    return answer.json() == "reached"


def test_who_trusts_the_authority_comes_in_and_plain_text_does_not(tmp_path: Path) -> None:
    ours, other = trustme.CA(), trustme.CA()

    async def live() -> None:
        async with served(written(tmp_path, ours)) as address:
            assert await answers(address, trusting(ours))
            assert not await answers(address, trusting(other))
            async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
                with contextlib.suppress(httpx.TransportError):
                    told = await client.get(f"http://{address}/")
                    raise AssertionError(f"plain text was answered: {told}")

    asyncio.run(live())


def test_with_an_authority_of_clients_only_theirs_come_in(tmp_path: Path) -> None:
    ours, clients, other = trustme.CA(), trustme.CA(), trustme.CA()

    async def live() -> None:
        async with served(written(tmp_path, ours, clients)) as address:
            assert await answers(address, trusting(ours, clients.issue_cert("client")))
            assert not await answers(address, trusting(ours))
            assert not await answers(address, trusting(ours, other.issue_cert("client")))

    asyncio.run(live())


def test_renewed_certificates_are_shown_to_who_comes_next_however_they_were_put_there(
    tmp_path: Path,
) -> None:
    clients = trustme.CA()
    client = clients.issue_cert("client")

    async def live() -> None:
        old = trustme.CA()
        files = written(tmp_path, old, clients)
        async with served(files) as address:
            assert await answers(address, trusting(old, client))
            for renewal in ("rename", "write", "rename", "rename"):
                new = trustme.CA()
                if renewal == "write":
                    written(tmp_path, new, clients)
                else:
                    _replaced(files, new, clients)
                async with asyncio.timeout(RENEWED_S):
                    while not await answers(address, trusting(new, client)):
                        await asyncio.sleep(0.02)
                assert not await answers(address, trusting(old, client))
                assert not await answers(address, trusting(new))
                old = new

    asyncio.run(live())


def _replaced(files: TlsFiles, authority: trustme.CA, clients: trustme.CA) -> None:
    beside = files.certificate.parent / "beside"
    beside.mkdir(exist_ok=True)
    made = written(beside, authority, clients)
    made.key.replace(files.key)
    made.certificate.replace(files.certificate)


def test_a_renewal_that_is_half_written_leaves_the_certificate_as_it_was(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()

    async def live() -> None:
        files = written(tmp_path, old)
        async with served(files) as address:
            whole = written(tmp_path, new)
            key = whole.key.read_bytes()
            whole.key.write_bytes(b"-----BEGIN")
            await asyncio.sleep(0.2)
            assert await answers(address, trusting(old))
            assert not await answers(address, trusting(new))
            whole.key.unlink()
            await asyncio.sleep(0.2)
            assert await answers(address, trusting(old))
            assert not await answers(address, trusting(new))
            whole.key.write_bytes(key)
            async with asyncio.timeout(RENEWED_S):
                while not await answers(address, trusting(new)):
                    await asyncio.sleep(0.02)

    asyncio.run(live())
