"""Opens the client of a traffic class by its API."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from loadgen.clients.certificates import trusted
from loadgen.clients.client import ClientSpec, RequestClient
from loadgen.clients.openai_http import OpenAIHttpClient


@asynccontextmanager
async def open_client(
    spec: ClientSpec, *, on_chunks: Callable[[int], None]
) -> AsyncIterator[RequestClient]:
    """Open a client in the running event loop; closes its connections at the end.

    `on_chunks` gets the number of chunks as they arrive. Raises OptionError for an unusable
    certificate file or header. Connects at the first request.
    """
    if spec.api == "grpc":
        from loadgen.clients.vllm_grpc import open_grpc  # noqa: PLC0415  heavy, for few

        async with open_grpc(spec, on_chunks=on_chunks) as client:
            yield client
        return
    tls = trusted(spec.ca) if urlsplit(spec.url).scheme == "https" else None
    async with OpenAIHttpClient(spec, tls=tls, on_chunks=on_chunks) as http:
        yield http
