"""A server whose chips live on two Ray nodes, with its control service, events and processes."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from emulator.errors import UltraServeError
from serving.access.control_key import find_control_key
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from serving.wire.machine_state import FaultStage, MachineState
from tests.e2e.server_answers import control
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.emulator.actors.two_ray_nodes import OTHER, TwoRayNodes, started_nodes
from tests.simulation.over_http.question import CONTEXT_TOKENS

CALL_S_MAX: Final = 120.0
FRESH_S_MAX: Final = 300.0
"""Bound for an engine that restarts half of its chips to answer."""
HANG_TIMEOUT_S: Final = 0.2
"""Emulated; with the real clock also wall seconds."""
SILENCE_TIMEOUT_S: Final = 4.0
"""Wall seconds for which a chip may be stopped."""
READY_S_MAX: Final = 600.0
"""Until a server of 140 chips answers."""
CORPUS_FILES: Final = 40
RAY_SETTINGS: Final = {
    # What the engine sets for a Ray of its own, for the same reasons.
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    # Nothing forks the workers of a cluster: each takes a second of a core to start. 140 at once on
    # two cores do not come to register within Ray's minute, and are started again and again.
    "RAY_worker_maximum_startup_concurrency": "4",
    "RAY_worker_register_timeout_seconds": "180",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_gcs_server_port_wait_time_s": "120",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A run's size: the partition, chips per hand-over, and clients."""

    chips: int
    spares: int
    group_chips: int
    clients: int

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            *("--chips", f"{self.chips}", "--spares", f"{self.spares}", "--clock", "real"),
            *("--max-num-batched-tokens", "256", "--max-model-len", f"{CONTEXT_TOKENS}"),
            *("--hang-timeout", f"{HANG_TIMEOUT_S}", "--silence-timeout", f"{SILENCE_TIMEOUT_S}"),
            "--disable-uvicorn-access-log",
            *("--day-night", "manual", "--day-length", "120s", "--drain-grace", "0.05s"),
            *("--group-chips", f"{self.group_chips}", "--lend-chips", f"{self.group_chips}"),
        )


class EventReader:
    """Reads the server's events from the start: the stages of each fault, in order."""

    def __init__(self, client: ControlClient) -> None:
        self.stages: dict[int, list[FaultStage]] = defaultdict(list)
        self.lost = 0
        self._client = client
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(UltraServeError, ValueError):  # the server ends, or this run does
            for event, lost in self._client.events(0):
                self.lost += lost
                if event.fault is not None:
                    self.stages[event.fault.number].append(event.fault.stage)

    def wait_for(self, fault: int, stage: FaultStage, timeout_s: float = 30.0) -> None:
        end_s = time.monotonic() + timeout_s
        while stage not in self.stages.get(fault, ()):
            assert time.monotonic() < end_s, f"fault {fault}: {self.stages.get(fault)}"
            time.sleep(0.05)  # the events are read by another thread


@dataclass(kw_only=True)
class ServedMachine:
    """A chaos run's server and cluster; `call_s` are the durations of its state readings."""

    size: Size
    server: ServerProcess
    cluster: TwoRayNodes
    client: ControlClient
    events: EventReader
    call_s: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.url

    def state(self) -> MachineState:
        """The machine's current state, not the engine's last answer."""
        end_s = time.monotonic() + FRESH_S_MAX
        while (state := self._state()).age_s > 0:
            assert time.monotonic() < end_s, f"the engine has said nothing for {state.age_s} s"
            time.sleep(0.1)  # polls another process
        return state

    def _state(self) -> MachineState:
        began_s = time.monotonic()
        state = self.client.call(control_call.GET_STATE)
        self.call_s.append(time.monotonic() - began_s)
        return state

    def chips(self) -> dict[int, psutil.Process]:
        """The processes of chips, serving or training, by id."""
        return {process.pid: process for process in self.cluster.workers()}

    def workers(self) -> set[int]:
        """All processes that Ray has started, including future chips."""
        return {each.pid for each in self.cluster.processes() if _is_worker(each)}

    def chips_of_other_node(self) -> int:
        """Number of chips' processes on the node that can be lost."""
        return len(self.cluster.workers(OTHER))

    def resident_bytes(self) -> int:
        """Of the server and all chips; shared pages count for each."""
        found = 0
        for process in [psutil.Process(self.server.pid), *self.chips().values()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += process.memory_info().rss
        return found


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name().startswith("ray::") or any(
            part.endswith("default_worker.py") for part in process.cmdline()
        )
    return False


def write_corpus(folder: Path) -> Path:
    """Text to train on: enough files that some are held out."""
    folder.mkdir()
    for number in range(CORPUS_FILES):
        lines = (f"line {line} of file {number}: the bridge stands.\n" for line in range(100))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


def patient_client(server: ServerProcess) -> ControlClient:
    """A client that waits for each outcome."""
    return ControlClient(
        ControlAddress(port=server.control_port),
        timeout_s=CALL_S_MAX,
        key=find_control_key(server.control_port, server.own_environment),
        patience_s=FRESH_S_MAX,
    )


@contextmanager
def served_machine(size: Size, scratch: Path) -> Iterator[ServedMachine]:
    training = (
        *("--train-dir", str(scratch / "training")),
        *("--train-corpus", str(write_corpus(scratch / "corpus"))),
    )
    with started_nodes(settings=RAY_SETTINGS) as cluster:
        arguments = (*size.arguments, *training, "--ray-address", cluster.address)
        with started(ULTRASERVE, *arguments, environment=cluster.environment) as server:
            server.wait_ready(READY_S_MAX)
            with patient_client(server) as client, control(server, CALL_S_MAX) as watching:
                events = EventReader(watching)
                yield ServedMachine(
                    size=size, server=server, cluster=cluster, client=client, events=events
                )


def right_answers_arguments() -> tuple[str, ...]:
    """A quiet server of one chip: text does not depend on the partition."""
    return (
        *("--chips", "1", "--clock", "real", "--max-model-len", f"{CONTEXT_TOKENS}"),
        *("--max-num-batched-tokens", "256", "--disable-uvicorn-access-log"),
    )
