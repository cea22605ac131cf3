"""The page of metrics: what the app says, and the hardware behind it."""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families

from emulator.memory.lnc import core_map
from emulator.specs.chips import chip_by_name
from serving.server.gateway.http import metrics_page
from serving.server.gateway.http.asgi import App, Message, Receive, Scope, Send
from serving.server.gateway.http.metrics_page import MetricsPage
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.host_meter import HostMeter
from serving.telemetry.page.neuron_page import Instance
from serving.telemetry.page.snapshot_page import snapshot_page
from tests.serving.server.gateway.test_snapshot_poller import SlowEngine

APP_S = "# HELP app_metric Of the app.\n# TYPE app_metric gauge\napp_metric 1\n"


def app_that_says(*bodies: bytes, status: int = 200) -> App:
    """An app that sends its answer in so many messages, and says how long it is."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        length = str(sum(map(len, bodies))).encode()
        headers = [(b"content-type", b"text/plain; version=1.0.0"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for number, body in enumerate(bodies, start=1):
            more = number < len(bodies)
            await send({"type": "http.response.body", "body": body, "more_body": more})

    return app


def got(
    page: MetricsPage,
    path: str = "/metrics",
    method: str = "GET",
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> tuple[Message, bytes]:
    """The head and the body of one answer."""
    sent: list[Message] = []

    async def ask() -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "path": path, "method": method, "headers": list(headers)}
        await page(scope, receive, send)

    asyncio.run(ask())
    return sent[0], b"".join(message.get("body", b"") for message in sent[1:])


def page_of(app: App, engine: SlowEngine) -> MetricsPage:
    instance = Instance(
        instance_type="trn3-nl72x2",
        runtime_tag="1",
        cores=core_map(chip_by_name("trainium3"), 2),
    )
    return MetricsPage(app, SnapshotPoller(engine), instance, HostMeter(os.getpid()), None)


@pytest.mark.long
def test_the_hardware_stands_behind_what_the_app_says_and_the_length_is_of_both() -> None:
    engine = SlowEngine()
    engine.seen.step(0, 1)
    half = len(APP_S) // 2
    app = app_that_says(APP_S[:half].encode(), APP_S[half:].encode())
    head, body = got(page_of(app, engine))

    families = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"app_metric", "ultraserve_chip_joules", "neuroncore_utilization_ratio"} <= families
    assert body.decode().startswith(APP_S)
    assert dict(head["headers"])[b"content-length"] == str(len(body)).encode()
    assert dict(head["headers"])[b"content-type"] == b"text/plain; version=1.0.0"


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/models", "GET"), ("/metrics", "POST"), ("/metrics/x", "GET")]
)
def test_every_other_request_is_the_app_s_alone(path: str, method: str) -> None:
    engine = SlowEngine()
    assert got(page_of(app_that_says(b"answer"), engine), path, method)[1] == b"answer"
    assert engine.asked == 0


@pytest.mark.long
def test_an_app_that_refuses_is_not_made_longer() -> None:
    head, body = got(page_of(app_that_says(b"no", status=503), SlowEngine()))
    assert (head["status"], body) == (503, b"no")


@pytest.mark.long
def test_without_an_engine_the_page_is_the_app_s() -> None:
    engine = SlowEngine()
    engine.errored = True
    engine.may_answer.clear()
    assert got(page_of(app_that_says(APP_S.encode()), engine))[1].decode() == APP_S


@pytest.mark.long
@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
@pytest.mark.parametrize(
    "header", [(b"accept-encoding", b"gzip"), (b"Accept", b"application/openmetrics-text")]
)
def test_whatever_a_request_would_take_the_page_is_one_plain_text(
    path: str, header: tuple[bytes, bytes]
) -> None:
    registry = CollectorRegistry()
    Gauge("app_metric", "Of the app.", registry=registry).set(1)
    app = make_asgi_app(registry)
    head, body = got(page_of(app, SlowEngine()), path, headers=(header,))

    families = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"app_metric", "ultraserve_chip_joules"} <= families
    assert b"# EOF" not in body
    assert dict(head["headers"])[b"Content-Type"].startswith(b"text/plain")


class FailingEngine(SlowEngine):
    """A real engine whose answers are errors when a test says so."""

    fails = False

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        if self.fails:
            raise ValueError("the meters do not add up")
        return await super().collective_rpc(method, timeout, args, kwargs)


@pytest.fixture
def server_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged below "vllm", each line once whatever handlers another test has left."""
    log = logging.getLogger("vllm")
    monkeypatch.setattr(log, "propagate", False)
    log.addHandler(caplog.handler)
    yield caplog
    log.removeHandler(caplog.handler)


def test_an_engine_that_answers_with_errors_is_shown_as_it_last_was_and_its_words_are_logged_once(
    server_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_page, "_MAX_AGE_S", 0.0)
    engine = FailingEngine()
    page = page_of(app_that_says(APP_S.encode()), engine)
    engine.fails = True
    assert got(page)[1].decode() == APP_S
    engine.fails = False
    assert b"ultraserve_chip_joules" in got(page)[1]
    engine.fails = True
    for _ in range(3):
        assert b"ultraserve_hardware_snapshot_age_seconds" in got(page)[1]
    told = [record.getMessage() for record in server_log.records]
    assert len(told) == 2
    assert all("the meters do not add up" in each for each in told)


def test_a_look_that_cannot_be_shown_leaves_the_app_s_page(
    server_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unshown(*_: object, **__: object) -> str:
        raise ValueError("an owner that nobody knows")

    monkeypatch.setattr(metrics_page, "snapshot_page", unshown)
    page = page_of(app_that_says(APP_S.encode()), SlowEngine())
    for _ in range(2):
        assert got(page)[1].decode() == APP_S
    (told,) = [record.getMessage() for record in server_log.records]
    assert "an owner that nobody knows" in told


@pytest.mark.long
def test_who_share_a_young_look_share_its_text_and_an_old_one_s_host_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered = []

    def counted(*args: Any) -> str:
        rendered.append(args)
        return snapshot_page(*args)

    monkeypatch.setattr(metrics_page, "snapshot_page", counted)
    monkeypatch.setattr(metrics_page, "_MAX_AGE_S", 600.0)
    engine = SlowEngine()
    page = page_of(app_that_says(APP_S.encode()), engine)
    bodies = [got(page)[1] for _ in range(3)]
    assert (engine.asked, len(rendered)) == (1, 1)
    assert all(b"ultraserve_chip_joules" in body for body in bodies)
    monkeypatch.setattr(metrics_page, "_MAX_AGE_S", 0.0)
    engine.may_answer.clear()
    assert b"ultraserve_chip_joules" in got(page)[1]
    assert len(rendered) == 2
