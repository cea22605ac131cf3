"""The page of metrics: what the app says, and the hardware behind it."""

import asyncio
import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from emulator.model import core_map
from emulator.specs.chips import chip_by_name
from serving.front_door.hardware_watch import HardwareWatch
from serving.front_door.http.asgi import App, Message, Receive, Scope, Send
from serving.front_door.http.metrics_page import MetricsPage
from serving.metrics.host_meter import HostMeter
from serving.metrics.page.neuron_page import Instance
from tests.serving.front_door.test_hardware_watch import SlowEngine

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


def got(page: MetricsPage, path: str = "/metrics", method: str = "GET") -> tuple[Message, bytes]:
    """The head and the body of one answer."""
    sent: list[Message] = []

    async def ask() -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "path": path, "method": method, "headers": []}
        await page(scope, receive, send)

    asyncio.run(ask())
    return sent[0], b"".join(message.get("body", b"") for message in sent[1:])


def page_of(app: App, engine: SlowEngine) -> MetricsPage:
    instance = Instance(
        instance_type="trn3-nl72x2",
        runtime_tag="1",
        cores=core_map(chip_by_name("trainium3"), 2),
    )
    return MetricsPage(app, HardwareWatch(engine), instance, HostMeter(os.getpid()), None)


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


def test_an_app_that_refuses_is_not_made_longer() -> None:
    head, body = got(page_of(app_that_says(b"no", status=503), SlowEngine()))
    assert (head["status"], body) == (503, b"no")


def test_without_an_engine_the_page_is_the_app_s() -> None:
    engine = SlowEngine()
    engine.errored = True
    engine.may_answer.clear()
    assert got(page_of(app_that_says(APP_S.encode()), engine))[1].decode() == APP_S
