"""What makes the batches of one server: its store, its runner, and its API."""

from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from serving.access.key_ring import KeyRing
from serving.policy.admission.work import Client
from serving.server.batch.batch_api import BatchApi
from serving.server.batch.batch_record import BatchStatus
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_settings import BatchSettings
from serving.server.batch.batch_store import BatchStore
from serving.server.batch.input_file import BatchRequest
from serving.server.gateway.http.inner_request import InnerAnswer, InnerRequest
from serving.server.gateway.http.request_body import BodyReader
from serving.telemetry.batch_metrics import BatchMetrics


def make_batches(
    settings: BatchSettings,
    *,
    app: Any,
    ask: Callable[[InnerRequest], Awaitable[InnerAnswer]],
    keys: KeyRing,
    bodies: BodyReader,
    body_bytes_max: int,
    seats: Callable[[], int],
    registry: CollectorRegistry | None = None,
) -> tuple[BatchRunner, BatchApi]:
    """The runner, and the paths of its batches; `app` as for InnerRequest, the rest as for
    BatchRunner.
    """

    def make(path: str, request: BatchRequest, client: Client, request_id: str) -> InnerRequest:
        return InnerRequest(app, path, request.body, client=client, request_id=request_id)

    store = BatchStore(settings)
    runner = BatchRunner(
        store,
        make=make,
        ask=ask,
        client_of=keys.client_named,
        seats=seats,
        body_bytes_max=body_bytes_max,
        metrics=BatchMetrics(
            live=[status for status in BatchStatus if not status.is_over],
            over=[status for status in BatchStatus if status.is_over],
            registry=registry,
        ),
    )
    return runner, BatchApi(store, runner, bodies)
