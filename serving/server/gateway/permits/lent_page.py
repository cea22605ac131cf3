"""The page of metrics in an API process that has only its own figures: the first one's page."""

from http import HTTPStatus

from serving.policy.admission.refusal import Refused
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
from serving.server.gateway.http.metrics_page import PATH
from serving.server.gateway.permits.lent_permits import LentPermits


class LentPage:
    """`app` with the page of all API processes."""

    def __init__(self, app: App, desk: LentPermits) -> None:
        self._app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the page; pass others on."""
        if scope["type"] != "http" or path_of(scope) != PATH or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        try:
            page = await self._desk.page()
        except Refused as refused:
            words = f"{refused}\n".encode()
            await respond(send, HTTPStatus.SERVICE_UNAVAILABLE, body_headers(words), words)
            return
        headers = [
            (b"content-type", page.content_type.encode()),
            (b"content-length", str(len(page.text)).encode()),
        ]
        await respond(send, HTTPStatus(page.status), headers, page.text)


async def fetched_page(app: App) -> tuple[int, str, bytes]:
    """Status, content type and text of the page that `app` makes."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start = next(each for each in messages if "status" in each)
    kinds = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    text = b"".join(each.get("body", b"") for each in messages)
    return int(start["status"]), b"".join(kinds).decode(), text
