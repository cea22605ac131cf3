"""Further API processes of a server, each with vLLM's own HTTP app before the same engine.

vLLM 0.32 has them too, as children of a process that does nothing else. Here the server's own
process is the first of them, with all that a server has once (`serving.process.api_processes`):
vLLM's functions that run a server, launch its engine and collect metrics are wrapped in it.
Connections go to the process with the fewest, as vLLM has it. Held by tests of vLLM's signatures.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, Final

from prometheus_client import CollectorRegistry
from vllm.entrypoints.launchers.api_server import entry
from vllm.entrypoints.serve.instrumentator import metrics
from vllm.v1.engine import core_client
from vllm.v1.utils import run_api_server_worker_proc

from serving.plugin.replaced_attribute import replaced
from serving.process.api_processes import NAME, ApiProcesses
from serving.process.parent_death_watchdog import end_with_parent
from serving.telemetry.shared_families import SharedFamilies

_NOT_ACCEPTING: Final = 2**31 - 1
"""vLLM's mark of a process that takes no connection yet."""

_END_WALL_S: Final = 5.0
"""For a process that was told to end; then it is killed. Assumed."""

_started: Final[list[BaseProcess]] = []


def api_workers() -> tuple[BaseProcess, ...]:
    """The processes beside this one, once they are started."""
    return tuple(_started)


@contextlib.contextmanager
def several_api_processes(processes: ApiProcesses) -> Iterator[None]:
    """Have vLLM's server, run in this process meanwhile, start the others and share its engine."""
    run, launch = entry.run_server_worker, core_client.launch_core_engines

    async def run_first(address: str, sock: Any, args: Any, *given: Any, **named: Any) -> None:
        loads = get_context("spawn").RawArray("i", [_NOT_ACCEPTING] * processes.count)
        for index in range(1, processes.count):
            _start(processes.numbered(index), address, sock, args, loads)
        await run(address, sock, args, _client(processes, loads), *given, **named)

    def launch_for_all(
        vllm_config: Any, executor_class: Any, log_stats: bool, addresses: Any
    ) -> Any:
        for index in range(1, processes.count):
            to_engine, back = processes.engine_addresses(index)
            addresses.inputs.append(to_engine)
            addresses.outputs.append(back)
        return launch(vllm_config, executor_class, log_stats, addresses)

    def shared_registry() -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(SharedFamilies())
        return registry

    with (
        replaced(entry, "run_server_worker", run_first),
        replaced(metrics, "get_prometheus_registry", shared_registry),
        replaced(core_client, "launch_core_engines", launch_for_all),
    ):
        try:
            yield
        except BaseException:
            for worker in _started:
                worker.terminate()  # those that serve do not heed it, and have been told to end
            raise
        finally:
            _end_all()


def _client(processes: ApiProcesses, loads: Any) -> dict[str, Any]:
    """Arguments of vLLM's server as one process among several."""
    index = processes.index
    return {"client_count": processes.count, "client_index": index, "api_server_loads": loads}


def _start(processes: ApiProcesses, address: str, sock: Any, args: Any, loads: Any) -> None:
    worker = get_context("spawn").Process(
        target=_run,
        name=f"{NAME}_{processes.index}",
        args=(processes, address, sock, args, loads),
        daemon=True,
    )
    worker.start()
    _started.append(worker)


def _run(processes: ApiProcesses, address: str, sock: Any, args: Any, loads: Any) -> None:
    """One of the other processes, which ends with the first, or when that says so."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's, which the first one hears
        signal.signal(number, signal.SIG_IGN)
    os.environ |= processes.to_environment()
    to_engine, back = processes.engine_addresses(processes.index)
    client = _client(processes, loads) | {"input_address": to_engine, "output_address": back}
    run_api_server_worker_proc(address, sock, args, client)


def _end_all() -> None:
    """Wait for the others, which have been told to end; kill what does not."""
    end_s = time.monotonic() + _END_WALL_S
    for worker in _started:
        worker.join(max(0.0, end_s - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()
    _started.clear()
