"""The gateway of one engine in one API process, built when vLLM's app starts."""

import os
from collections.abc import Collection
from typing import Any, Protocol

from serving.access.key_ring import KeyReload, KeyRing
from serving.engine.engine_description import instance_of
from serving.plugin.platform import deployment_of
from serving.plugin.stat_logger import stat_logger_of
from serving.policy.admission.work import WorkClass
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.admitted_generate import admit_generation
from serving.server.gateway.engine_times import EngineCapacity
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.graceful_shutdown import GracefulShutdown
from serving.server.gateway.grpc.grpc_server import EngineGrpcServer
from serving.server.gateway.http.asgi import App
from serving.server.gateway.http.bounded_server import bound_server, measured_ingress
from serving.server.gateway.http.clock_page import ClockPage
from serving.server.gateway.http.http_gateway import HttpGateway
from serving.server.gateway.http.metrics_page import MetricsPage
from serving.server.gateway.http.request_body import BodyReader
from serving.server.gateway.http.request_work import ContextSize
from serving.server.gateway.memory_return import MemoryReturn
from serving.server.gateway.readiness import Readiness
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.first_token_times import FirstTokenTimes
from serving.telemetry.gateway_metrics import GatewayMetrics
from serving.telemetry.host_meter import HostMeter


class Service(Protocol):
    """Runs while the app is up; `stop` is idempotent."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""


class Gateway:
    """Keys, admission and readiness, which both protocols share.

    Every generation of `engine`, vLLM's AsyncLLM, then passes admission control. `control_secret`
    is the control service's key, if any. Raises ConfigError for a wrong key file.
    """

    def __init__(
        self, engine: Any, settings: GatewaySettings, *, control_secret: str | None
    ) -> None:
        self._engine = engine
        self.settings = settings
        self.keys = KeyRing(
            key_file=settings.key_file,
            key_hashes=settings.key_hashes,
            control_secret=control_secret,
        )
        self.capacity = EngineCapacity(engine, promises=settings.limits.ttft_target_s is not None)
        self.admission = AdmissionController(
            settings.limits, self.capacity, metrics=GatewayMetrics()
        )
        self.readiness = Readiness(
            engine, lambda: self.admission.closed, seats=lambda: self.capacity().seats
        )
        self.first_tokens = FirstTokenTimes()
        self.admission.on_wait = self._note_wait
        admit_generation(engine, self.admission)
        self.hardware = SnapshotPoller(engine)
        self.ingress = measured_ingress(settings)
        self.bodies = BodyReader(bytes_max=settings.body_bytes_max, account=self.ingress)

    def _note_wait(self, work_class: WorkClass, emulated_s: float) -> None:
        """Keep the waits that a policy of day and night judges: batch work has no target."""
        logger = stat_logger_of(self._engine)
        status = None if logger is None else logger.status
        if work_class is WorkClass.INTERACTIVE and status is not None:
            self.first_tokens.add(status.emulated_s, [emulated_s])

    def before(self, app: App, *, missing: Collection[str] = ()) -> HttpGateway:
        """The HTTP gateway before vLLM's app; `missing` are paths that the model cannot answer."""
        return HttpGateway(
            self._with_hardware(app),
            keys=self.keys,
            admission=self.admission,
            readiness=self.readiness,
            bodies=self.bodies,
            context=ContextSize.of(self._engine),
            request_wall_s_max=self.settings.request_wall_s_max,
            missing=missing,
        )

    def _with_hardware(self, app: App) -> MetricsPage:
        deployment = deployment_of(self._engine.vllm_config)
        logger = stat_logger_of(self._engine)
        return MetricsPage(
            ClockPage(app, logger, setting=deployment.settings.clock),
            self.hardware,
            instance_of(deployment, os.environ, pid=os.getpid()),
            HostMeter(os.getpid()),
            logger,
        )

    def services(self, server: Any) -> list[Service]:
        """Services beside the app, in order of their start; `server` is its uvicorn server.

        Its connections have the ingress account's limits from now on.
        """
        bound_server(server.config, self.settings, self.ingress, self.keys)
        services: list[Service] = [
            GracefulShutdown(
                self._engine,
                server,
                self.admission,
                drain_wall_s_max=self.settings.drain_wall_s_max,
            ),
            KeyReload(self.keys),
            MemoryReturn(),
        ]
        if self.settings.grpc_port is not None:
            services.append(
                EngineGrpcServer(
                    self._engine,
                    self.settings,
                    admission=self.admission,
                    keys=self.keys,
                    readiness=self.readiness,
                    ingress=self.ingress,
                )
            )
        return services
