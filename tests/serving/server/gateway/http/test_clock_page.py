"""What clients are told of emulated time: a page, and a header of each response."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulator.sim.epochs import Epoch, EpochMap
from serving.plugin.stat_logger import EmulatedStatLogger
from serving.server.gateway.http.asgi import Message, Receive, Scope, Send
from serving.server.gateway.http.clock_page import ClockPage


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    del receive
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def clock(*epochs: tuple[float, float, float]) -> EmulatedStatLogger:
    """What a logger knows of the clock: (dilation, from emulated s, from Unix s) of each epoch."""
    known = tuple(
        Epoch(
            index=number,
            from_ns=round(emulated_s * 10**9),
            from_wall_ns=round(unix_s * 10**9),
            dilation=dilation,
        )
        for number, (dilation, emulated_s, unix_s) in enumerate(epochs)
    )
    return cast("EmulatedStatLogger", SimpleNamespace(epochs=EpochMap(known) if known else None))


def got(logger: EmulatedStatLogger | None, path: str, method: str = "GET") -> tuple[Any, bytes]:
    """The headers and the body of an answer."""
    sent: list[Message] = []

    async def ask() -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        page = ClockPage(app, logger, setting="auto")
        await page({"type": "http", "path": path, "method": method, "headers": []}, receive, send)

    asyncio.run(ask())
    return dict(sent[0]["headers"]), sent[1]["body"]


def test_the_page_tells_the_epochs_and_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_026 * 10**9)
    _, body = got(clock((4.0, 0.0, 1_000.0), (2.0, 5.0, 1_020.0)), "/clock")

    assert json.loads(body) == {
        "clock": "auto",
        "now": {"unix_s": 1_026.0, "emulated_s": 8.0},
        "epochs": [
            {"epoch": 0, "from_emulated_s": 0.0, "from_unix_s": 1_000.0, "dilation": 4.0},
            {"epoch": 1, "from_emulated_s": 5.0, "from_unix_s": 1_020.0, "dilation": 2.0},
        ],
    }


def test_every_response_says_the_present_dilation_and_its_epoch() -> None:
    headers, body = got(clock((4.0, 0.0, 1_000.0), (2.5, 5.0, 1_020.0)), "/v1/models")

    assert body == b"/v1/models"
    assert headers == {
        b"content-type": b"text/plain",
        b"x-ultraserve-dilation": b"2.5",
        b"x-ultraserve-clock-epoch": b"1",
    }


def test_before_the_engine_has_said_anything_the_page_is_there_and_the_headers_are_not() -> None:
    headers, _ = got(clock(), "/v1/models")
    assert headers == {b"content-type": b"text/plain"}
    assert json.loads(got(clock(), "/clock")[1])["epochs"] == []


def test_without_a_logger_of_stats_there_is_the_app_alone() -> None:
    assert got(None, "/clock") == ({b"content-type": b"text/plain"}, b"/clock")


def test_another_method_is_the_app_s() -> None:
    assert got(clock((4.0, 0.0, 1.0)), "/clock", "POST")[1] == b"/clock"
