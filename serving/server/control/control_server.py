"""The control service of one engine: guarded gRPC, and the console."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.access.tls_files import TlsFiles
from serving.server.connections.connection_registry import PortLimits
from serving.server.console.event_stream import engine_streams
from serving.server.control.console_snapshots import ConsoleSnapshots
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_guard import GuardLimits, unnamed
from serving.server.control.control_ports import ControlPorts, PortsAccess
from serving.server.control.control_service import ControlService
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import EngineAnswers, generic_service
from serving.server.control.last_replies import LastReplies
from serving.server.day_night.controller import DayNight
from serving.server.engine_call import ServedEngine
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.latency_window import Latencies


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Optional parts of a server.

    Attributes:
        hardware: a shared poller; None: the server makes its own.
        latencies: of the newest requests.
        console_port: None: the port after the control service's; 0: no console.
    """

    day_night: DayNight | None = None
    admission: AdmissionController | None = None
    hardware: SnapshotPoller | None = None
    latencies: Latencies | None = None
    console_port: int | None = None


class ControlServer:
    """The service on its address, from `start` to `stop`, both in the loop of the engine's client.

    Every call but health and the page's files needs a key that `admits` accepts; `named` names it.
    Raises as `ControlPorts`.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: ControlAddress,
        parts: ServerParts | None = None,
        *,
        admits: Callable[[str | None], bool],
        named: Callable[[str | None], str] = unnamed,
        limits: GuardLimits | None = None,
        tls: TlsFiles | None = None,
        port_limits: PortLimits | None = None,
    ) -> None:
        parts = parts or ServerParts()
        self.watch = EngineWatch(engine, parts.admission)
        if parts.day_night is not None:
            parts.day_night.on_job_failure = self.watch.job_failed
        hardware = parts.hardware or SnapshotPoller(engine)
        self._looks = ConsoleSnapshots(
            engine,
            self.watch,
            hardware,
            day_night=parts.day_night,
            admission=parts.admission,
            latencies=parts.latencies,
        )
        self._replies = LastReplies(engine)
        service = ControlService(
            engine,
            parts.day_night,
            admission=parts.admission,
            watch=self.watch,
            hardware=hardware,
        )
        engine_answers = EngineAnswers(engine, self._replies, self.watch)
        self.ports = ControlPorts(
            address,
            generic_service(service, engine_answers),
            engine_streams(self._looks),
            PortsAccess(
                admits=admits,
                named=named,
                console_port=parts.console_port,
                limits=limits,
                tls=tls,
                port_limits=port_limits,
            ),
            changed=self._looks.forget,
        )
        self.watch.on_gone = self.ports.gone

    async def start(self) -> None:
        """Listen."""
        await self.ports.start()
        self.watch.start()
        self._replies.start()

    async def stop(self) -> None:
        """End, with a grace period for calls; idempotent."""
        await self.ports.stop_health()
        await self.watch.stop()
        await self.ports.guard.ledger.stop()
        await self._replies.stop()
        await self.ports.stop()
        await self._looks.stop()
