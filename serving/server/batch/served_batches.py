"""The batches of one engine's server, and their paths before vLLM's app."""

from typing import Any

from serving.plugin.response_model_version import begin_response
from serving.server.batch.batch_parts import make_batches
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_settings import BatchSettings
from serving.server.gateway.gateway import Gateway
from serving.server.gateway.http.http_gateway import HttpGateway
from serving.server.gateway.http.inner_request import InnerAnswer, InnerRequest


def serve_batches(
    gateway: Gateway, http: HttpGateway, app: Any, settings: BatchSettings
) -> BatchRunner:
    """Add the paths of batches to `http`, before the framework's `app`; returns their runner."""

    async def ask(inner: InnerRequest) -> InnerAnswer:
        begin_response()
        return await http.answer_inner(inner)

    runner, http.beside = make_batches(
        settings,
        app=app,
        ask=ask,
        keys=gateway.keys,
        bodies=gateway.bodies,
        body_bytes_max=gateway.settings.body_bytes_max,
        seats=lambda: gateway.capacity().seats,
    )
    return runner
