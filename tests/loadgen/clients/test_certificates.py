import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from loadgen.clients.certificates import trusted
from loadgen.clients.client import ClientSpec, Reply
from loadgen.clients.open_client import open_client
from loadgen.clients.question import open_session, served_model
from loadgen.errors import OptionError, ServerError
from loadgen.records.result import CONNECT
from tests.loadgen.clients.test_openai_http import EVENT, LAST, REQUEST


@pytest.fixture
def authority(tmp_path: Path) -> tuple[trustme.CA, Path]:
    ca = trustme.CA()
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return ca, path


async def completions(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(EVENT * 3 + LAST)
    return response


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m"}]})


def test_https_is_checked_by_the_given_certificates(authority: tuple[trustme.CA, Path]) -> None:
    ca, path = authority

    async def ask() -> list[Reply]:
        app = web.Application()
        app.router.add_post("/v1/completions", completions)
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("localhost").configure_cert(tls)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        url = f"https://localhost:{runner.addresses[0][1]}"
        try:
            async with open_session(ca=path) as session:
                assert (await served_model(session, url, None)).name == "m"
            async with open_session() as session:
                with pytest.raises(ServerError, match="certificate"):
                    await served_model(session, url, None)
            replies = []
            spec = ClientSpec(api="completions", url=url, model="m", timeout_s=20, ca=path)
            for each in (spec, replace(spec, ca=None)):
                async with open_client(each, on_chunks=lambda _: None) as client:
                    replies.append(await client.send(REQUEST))
            return replies
        finally:
            await runner.cleanup()

    believed, not_believed = asyncio.run(ask())

    assert (believed.error, len(believed.chunk_ns)) == (None, 3)
    assert not_believed.error == CONNECT
    assert "certificate" in not_believed.message


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_holds_no_certificate_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)

    with pytest.raises(OptionError, match=r"--ca=.*a file of certificates"):
        trusted(path)
