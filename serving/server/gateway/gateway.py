"""The gateway of one engine in an API process, built when vLLM's app starts."""

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from serving.access.key_ring import KeyReload, KeyRing
from serving.engine.engine_description import instance_of
from serving.plugin.platform import deployment_of
from serving.plugin.stat_logger import stat_logger_of
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import WorkClass
from serving.process.api_processes import ApiProcesses
from serving.server.gateway.admission_controller import AdmissionController, RequestAdmission
from serving.server.gateway.admitted_generate import admit_generation
from serving.server.gateway.engine_times import EngineCapacity, engine_seats
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
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.kv_params import KvParams
from serving.server.gateway.memory_return import MemoryReturn
from serving.server.gateway.permits.lent_page import LentPage, fetched_page
from serving.server.gateway.permits.lent_permits import LentPermits
from serving.server.gateway.permits.lent_process import LentProcess
from serving.server.gateway.permits.permit_messages import ClientsHeld
from serving.server.gateway.permits.permit_port import PermitPort
from serving.server.gateway.readiness import Readiness
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.gateway_metrics import GatewayMetrics
from serving.telemetry.host_meter import HostMeter
from serving.telemetry.recent_times import RecentTimes


class Service(Protocol):
    """Runs while the app is up; `stop` is idempotent."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""


class HttpFront:
    """Keys, ingress limits and vLLM's app, before any of which stands `admission`.

    `seats` is the engine's room in sequences by its newest status, 0 when no rank is up.
    """

    def __init__(
        self,
        engine: Any,
        settings: GatewaySettings,
        keys: KeyRing,
        admission: RequestAdmission,
        *,
        ingress: IngressAccount,
        closed: Callable[[], Refused | None],
        seats: Callable[[], int],
    ) -> None:
        self._engine = engine
        self.settings = settings
        self.keys = keys
        self._entries = admission
        self.readiness = Readiness(engine, closed, seats=seats)
        admit_generation(engine, admission)
        self.ingress = ingress
        self.bodies = BodyReader(bytes_max=settings.body_bytes_max, account=self.ingress)

    def http(self, app: App, *, missing: Collection[str] = ()) -> HttpGateway:
        """The HTTP gateway before `app`; `missing` are paths that the model cannot answer."""
        gateway = HttpGateway(
            app,
            keys=self.keys,
            admission=self._entries,
            readiness=self.readiness,
            bodies=self.bodies,
            context=ContextSize.of(self._engine),
            request_wall_s_max=self.settings.request_wall_s_max,
            missing=missing,
        )
        if self._engine.vllm_config.kv_transfer_config is not None:
            gateway.kv_params = KvParams.HEARD
        return gateway

    def with_clock(self, app: App) -> ClockPage:
        """`app` with the page and the headers of the emulated clock."""
        setting = deployment_of(self._engine.vllm_config).settings.clock
        return ClockPage(app, stat_logger_of(self._engine), setting=setting)

    def bound(self, server: Any) -> None:
        """Give later connections of the uvicorn `server` the ingress account's limits."""
        bound_server(server.config, self.settings, self.ingress, self.keys)


class Gateway(HttpFront):
    """Keys, admission and readiness, which both protocols share.

    Every generation of `engine`, vLLM's AsyncLLM, then passes admission control. `control_secret`
    is the control service's key, if any; `processes` the server's API processes, of which this is
    the first, where it has several. Raises ConfigError for a wrong key file.
    """

    def __init__(
        self,
        engine: Any,
        settings: GatewaySettings,
        *,
        control_secret: str | None,
        processes: ApiProcesses | None = None,
    ) -> None:
        self.capacity = EngineCapacity(engine, promises=settings.limits.ttft_target_s is not None)
        self.admission = AdmissionController(
            settings.limits, self.capacity, metrics=GatewayMetrics()
        )
        super().__init__(
            engine,
            settings,
            key_ring(settings, control_secret),
            self.admission,
            ingress=measured_ingress(settings, others=self._held_elsewhere),
            closed=lambda: self.admission.closed,
            seats=lambda: self.capacity().seats,
        )
        self.first_tokens = RecentTimes()
        self.admission.on_wait = self._note_wait
        self.hardware = SnapshotPoller(engine)
        self._lends = None if processes is None else self._lending(processes)
        self._pages: App | None = None

    def _note_wait(self, work_class: WorkClass, emulated_s: float) -> None:
        """Keep the waits that a policy of day and night judges: batch work has no target."""
        logger = stat_logger_of(self._engine)
        status = None if logger is None else logger.status
        if work_class is WorkClass.INTERACTIVE and status is not None:
            self.first_tokens.add(status.emulated_s, [emulated_s])

    def _lending(self, processes: ApiProcesses) -> PermitPort:
        logger = stat_logger_of(self._engine)
        return PermitPort(
            processes.permits,
            self.admission,
            on_times=(lambda _: None) if logger is None else logger.latencies.add,
            page=self._page,
        )

    async def _page(self) -> tuple[int, str, bytes]:
        assert self._pages is not None, "the app is there before its lifespan begins"
        return await fetched_page(self._pages)

    def _held_elsewhere(self) -> Sequence[ClientsHeld]:
        """What clients make the other API processes hold."""
        return [] if self._lends is None else self._lends.held

    def before(self, app: App, *, missing: Collection[str] = ()) -> HttpGateway:
        """The HTTP gateway before vLLM's app; `missing` are paths that the model cannot answer."""
        self._pages = self._with_hardware(app)
        return self.http(self._pages, missing=missing)

    def _with_hardware(self, app: App) -> MetricsPage:
        deployment = deployment_of(self._engine.vllm_config)
        logger = stat_logger_of(self._engine)
        return MetricsPage(
            self.with_clock(app),
            self.hardware,
            instance_of(deployment, os.environ, pid=os.getpid()),
            HostMeter(os.getpid()),
            logger,
        )

    def services(self, server: Any) -> list[Service]:
        """Services beside the app, in order of their start; `server` is its uvicorn server.

        Its connections have the ingress account's limits from now on.
        """
        self.bound(server)
        services: list[Service] = [] if self._lends is None else [self._lends]
        services += [
            GracefulShutdown(
                self._engine,
                server,
                self.admission,
                drain_wall_s_max=self.settings.drain_wall_s_max,
                others=self._lends,
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


class LentGateway(HttpFront):
    """The gateway of a further API process, whose admission is the first one's."""

    def __init__(self, engine: Any, settings: GatewaySettings, processes: ApiProcesses) -> None:
        self._desk = LentPermits(processes.permits)
        super().__init__(
            engine,
            settings,
            key_ring(settings, None),
            self._desk,
            ingress=measured_ingress(settings),
            closed=lambda: self._desk.closed,
            seats=engine_seats(engine),
        )

    def before(self, app: App, *, missing: Collection[str] = ()) -> HttpGateway:
        """The HTTP gateway before vLLM's app; `missing` are paths that the model cannot answer."""
        return self.http(LentPage(self.with_clock(app), self._desk), missing=missing)

    def services(self, server: Any) -> list[Service]:
        """Services beside the app, in order of their start; `server` is its uvicorn server."""
        self.bound(server)
        return [LentProcess(self._engine, server, self._desk, self.ingress), MemoryReturn()]


def key_ring(settings: GatewaySettings, control_secret: str | None) -> KeyRing:
    """The keys of a server."""
    return KeyRing(
        key_file=settings.key_file,
        key_hashes=settings.key_hashes,
        control_secret=control_secret,
    )
