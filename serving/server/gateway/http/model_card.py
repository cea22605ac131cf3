"""`GET /v1/models/NAME`, OpenAI's `models.retrieve`: an entry of the app's own list.

Source: https://platform.openai.com/docs/api-reference/models/retrieve
"""

from http import HTTPStatus
from typing import Any, Final

import msgspec

from serving.server.gateway.http.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    body_headers,
    path_of,
    respond,
)
from serving.server.gateway.http.http_errors import HttpError, answer

LIST_PATH: Final = "/v1/models"
_PREFIX: Final = f"{LIST_PATH}/"


class ModelCards:
    """`app` with a path for each model of its list."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for one model; pass other requests on."""
        path = path_of(scope) if scope["type"] == "http" else ""
        if scope.get("method") not in ("GET", "HEAD") or not path.startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        name = path.removeprefix(_PREFIX)
        cards = {str(card["id"]): card for card in await self._cards(scope, receive)}
        if name not in cards:
            await answer(send, _no_such_model(name, list(cards)), path=path, headers=[])
            return
        body = msgspec.json.encode(cards[name])
        await respond(send, HTTPStatus.OK, body_headers(body), body)

    async def _cards(self, scope: Scope, receive: Receive) -> list[dict[str, Any]]:
        parts: list[bytes] = []

        async def keep(message: Message) -> None:
            parts.append(bytes(message.get("body", b"")))

        listing = {
            **scope,
            "method": "GET",
            "path": f"{scope.get('root_path', '')}{LIST_PATH}",
            "raw_path": LIST_PATH.encode(),
        }
        await self._app(listing, receive, keep)
        cards: list[dict[str, Any]] = msgspec.json.decode(b"".join(parts))["data"]
        return cards


def _no_such_model(name: str, served: list[str]) -> HttpError:
    return HttpError(
        HTTPStatus.NOT_FOUND,
        "model_not_found",
        f"the model {name[:200]!r} does not exist here; served: {', '.join(served)}",
        param="model",
    )
