"""144 chips in this process, and the console's HTTP: no engine, no wire.

The machine is the emulator's; snapshots are made by a live server's code. Replaced are vLLM and the
gRPC service, whose calls are recorded.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web

from emulator.specs.fault import Fault, FaultKind, LinkTier
from serving.engine.scheduler_state import RankQueues
from serving.server.console.call_answer import CallAnswer, answered, failed
from serving.server.console.console_app import ConsoleApp
from serving.server.console.event_stream import HardwareEvent, engine_streams
from serving.server.engine_call import EngineGone
from serving.wire.control_call import (
    ExpertLoadReply,
    ExpertLoadRequest,
    SnapshotReply,
    SnapshotRequest,
)
from serving.wire.machine_snapshot import ExpertChoices, MachineSnapshot
from serving.wire.telemetry import EventKind, MachineEvent
from tests.e2e.server_process import HOST
from tests.serving.plugin.running_engine import Running, heard, lose

KEY: Final = "a key that is long enough to be one"
CHIPS: Final = 142
SPARES: Final = 2
LOST, SLOW, CUT = 40, 93, 22
_UNIX_S: Final = 1_800_000_000.0
_STEPS: Final = 2
_START_WALL_S: Final = 60.0


def troubled_machine() -> Running:
    """Two racks with a lost chip, a slow one, one with fewer links, and a lost switch tray."""
    running = Running(
        model="deepseek-v3", computes=False, chips=CHIPS, spares=SPARES, routing="zipf:0.6"
    )
    for fault in (
        lose(LOST),
        Fault(kind=FaultKind.SLOW_CHIP, chip=SLOW, factor=1.8),
        Fault(kind=FaultKind.CUT_LINK, chip=CUT, tier=LinkTier.BACKPLANE, lanes=4),
        Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=1),
    ):
        running.inject(fault)
    ranks = len(running.state().ranks)
    for _ in range(_STEPS):
        running.step(*range(ranks))
    queues = tuple(
        RankQueues(running=rank % 4, waiting=rank % 3, kv_blocks_used=rank % 64)
        for rank in range(ranks)
    )
    running.engine.hear(heard(rank_states=queues))
    return running


@dataclass(kw_only=True)
class ReplayedSnapshots:
    """The current snapshot of `running` for every reader."""

    running: Running
    run: str = "replayed"
    number: int = 0
    silent_s: float = 0.0
    night: dict[str, Any] | None = None
    engine_gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_number(self) -> int:
        return len(self.running.state().faults)

    @property
    def report(self) -> MachineSnapshot:
        reply = self.running.ask(SnapshotRequest())
        assert isinstance(reply, SnapshotReply)
        return reply.snapshot

    @property
    def load(self) -> ExpertChoices:
        reply = self.running.ask(ExpertLoadRequest())
        assert isinstance(reply, ExpertLoadReply)
        return reply.load

    async def happened(self, after: int) -> AsyncGenerator[tuple[MachineEvent, int], None]:
        for record in self.running.state().faults[after:]:
            words = f"fault {record.number}, {record.fault.kind}: {record.reason}"
            yield (
                MachineEvent(
                    number=record.number,
                    emulated_s=record.injected_emulated_s,
                    unix_s=_UNIX_S + record.number,
                    kind=EventKind.FAULT,
                    words=words,
                    fault=record,
                ),
                0,
            )
        await self.engine_gone.wait()  # nothing more happens
        raise EngineGone

    async def hardware(self, *, max_age_s: float, within_s: float) -> HardwareEvent | None:
        """A new snapshot each time; while the engine is `silent_s`, the last one, of that age."""
        del max_age_s, within_s
        if self.engine_gone.is_set():
            raise EngineGone
        if not self.silent_s:
            self.number += 1
        data = msgspec.json.encode(self.report)
        return HardwareEvent(number=self.number, json=data, age_s=self.silent_s)

    async def part(self, name: str, *, max_age_s: float) -> bytes | None:
        """The page's other parts; of latency and admission there is nothing."""
        del max_age_s
        if name == "experts":
            return msgspec.json.encode(self.load)
        if name == "daynight" and self.night is not None:
            return msgspec.json.encode(self.night)
        return None


@dataclass(kw_only=True)
class KeptCalls:
    """Records the calls; answers the page's briefly."""

    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)

    def changes(self, method: str) -> bool:
        return not method.startswith(("Get", "Describe"))

    async def call(
        self,
        method: str,
        body: bytes,
        *,
        key: str | None,
        action: str | None = None,
        replica: str | None = None,
        wall_s: float | None = None,
    ) -> CallAnswer:
        del replica, wall_s
        if key != KEY:
            return failed("unauthenticated", "expected the control service's key")
        assert action or not self.changes(method), "a change has an idempotency key"
        self.asked.append((method, json.loads(body), key))
        return answered(b'{"report": {"survivable": true, "reason": "as the dry run said"}}')


@dataclass(kw_only=True)
class ReplayedServer:
    """The console's HTTP on its own port; can be stopped and started again."""

    looks: ReplayedSnapshots
    calls: KeptCalls = field(default_factory=KeptCalls)
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def run(self) -> None:
        """Serve calls of other threads until the loop is stopped."""
        self._loop.run_forever()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_START_WALL_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_START_WALL_S)

    def lose_engine(self) -> None:
        """End the engine but not the port: every stream says so and ends."""
        self._loop.call_soon_threadsafe(self.looks.engine_gone.set)

    def find_engine(self) -> None:
        """Bring an engine back, as when another server has taken the port."""
        self._loop.call_soon_threadsafe(self.looks.engine_gone.clear)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self) -> None:
        console = ConsoleApp(
            calls=self.calls,
            streams=engine_streams(self.looks),
            admits=lambda key: key == KEY,
            own_host=HOST,
            cookie="session",
        )
        self._runner = web.AppRunner(console.app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


@contextmanager
def replayed_server() -> Iterator[ReplayedServer]:
    server = ReplayedServer(looks=ReplayedSnapshots(running=troubled_machine()))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.end()
        thread.join()
