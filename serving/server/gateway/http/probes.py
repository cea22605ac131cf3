"""HTTP's probes: 200, or 503 with the reason in one line.

As Kubernetes asks: it waits for /startupz, restarts a server whose /livez fails, and sends requests
by /readyz. vLLM's /health is unchanged.

https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

from http import HTTPStatus
from typing import Final

from serving.server.gateway.http.asgi import NO_STORE, Headers, Send, body_headers, respond
from serving.server.gateway.readiness import ServerReadiness

STARTUP: Final = "/startupz"
LIVE: Final = "/livez"
READY: Final = "/readyz"
PATHS: Final = (STARTUP, LIVE, READY)


async def answer_probe(readiness: ServerReadiness, path: str, send: Send, headers: Headers) -> None:
    """Answer a request for one of PATHS, with `headers`."""
    reason = None  # for /startupz: the app answers nobody before it is up
    if path == LIVE:
        reason = readiness.not_alive()
    elif path == READY:
        reason = await readiness.not_ready()
    body = f"{reason or 'ok'}\n".encode()
    status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
    text = body_headers(body, b"text/plain; charset=utf-8")
    await respond(send, status, [*text, NO_STORE, *headers], body)
