"""The batches of one server: its store, its runner, and its paths before the app."""

from typing import Any

from serving.plugin.response_model_version import begin_response
from serving.policy.admission.work import Client
from serving.server.batch.batch_api import BatchApi
from serving.server.batch.batch_record import BatchStatus
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_settings import BatchSettings
from serving.server.batch.batch_store import BatchStore
from serving.server.batch.input_file import BatchRequest
from serving.server.gateway.gateway import Gateway
from serving.server.gateway.http.http_gateway import HttpGateway
from serving.server.gateway.http.inner_request import InnerAnswer, InnerRequest
from serving.telemetry.batch_metrics import BatchMetrics


def serve_batches(
    gateway: Gateway, http: HttpGateway, app: Any, settings: BatchSettings
) -> BatchRunner:
    """Add the paths of batches to `http`, before the framework's `app`; returns their runner."""

    def make(path: str, request: BatchRequest, client: Client, request_id: str) -> InnerRequest:
        return InnerRequest(app, path, request.body, client=client, request_id=request_id)

    async def ask(inner: InnerRequest) -> InnerAnswer:
        begin_response()
        return await http.answer_inner(inner)

    store = BatchStore(settings)
    runner = BatchRunner(
        store,
        make=make,
        ask=ask,
        client_of=gateway.keys.client_named,
        seats=lambda: gateway.capacity().seats,
        body_bytes_max=gateway.settings.body_bytes_max,
        metrics=BatchMetrics(
            live=[status for status in BatchStatus if not status.is_over],
            over=[status for status in BatchStatus if status.is_over],
        ),
    )
    http.beside = BatchApi(store, runner, gateway.bodies)
    return runner
