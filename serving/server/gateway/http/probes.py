"""Probes of HTTP: is the server up, alive, ready? 200, or 503 with the reason in one line.

The words are Kubernetes' (https://kubernetes.io/docs/concepts/configuration/liveness-readiness-
startup-probes/): an orchestrator waits for /startupz, starts a server anew whose /livez fails, and
sends requests to one whose /readyz does not. vLLM's own /health stays what it is.
"""

from http import HTTPStatus
from typing import Final

from serving.server.gateway.http.asgi import Headers, Send
from serving.server.gateway.readiness import Readiness

STARTUP: Final = "/startupz"
LIVE: Final = "/livez"
READY: Final = "/readyz"
PATHS: Final = (STARTUP, LIVE, READY)


class Probes:
    """Answers the probes' paths from one `readiness`."""

    def __init__(self, readiness: Readiness) -> None:
        self.readiness = readiness

    async def answered(self, path: str, send: Send, headers: Headers) -> bool:
        """Answer a probe; False, and nothing sent, for another path."""
        if path not in PATHS:
            return False
        status, line = await self._verdict(path)
        body = f"{line}\n".encode()
        await send(
            {
                "type": "http.response.start",
                "status": status.value,
                "headers": [
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", str(len(body)).encode()),
                    (b"cache-control", b"no-store"),
                    *headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})
        return True

    async def _verdict(self, path: str) -> tuple[HTTPStatus, str]:
        # The app answers nobody before it is up, so whoever hears this hears that.
        reason = None
        if path == LIVE:
            reason = self.readiness.not_alive()
        elif path == READY:
            reason = await self.readiness.not_ready()
        if reason is None:
            return HTTPStatus.OK, "ok"
        return HTTPStatus.SERVICE_UNAVAILABLE, reason
