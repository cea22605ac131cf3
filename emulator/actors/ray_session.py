"""Starts and stops the chips' Ray: a private one, or a place in a running cluster.

A private Ray is local, quiet, and removed afterwards. A joined cluster outlives the chips, which
are spread over its nodes.
"""

import contextlib
import logging
import os
import signal
import site
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.services import get_ray_address_from_environment
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from emulator.actors.chip_worker import ChipWorker
from emulator.actors.fork_server import ForkServer
from emulator.actors.private_ray import (
    VITAL,
    DaemonWatch,
    forget_token,
    loopback_only,
    own_daemons,
    own_token,
    refuse_open_ray,
    wants_token,
    without_sigterm,
)
from emulator.actors.scratch_directory import ScratchDirectory
from emulator.errors import ConfigError
from startup.import_path import CODE_ROOT, SAFE_PATH, sealed_children, variables


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node of a Ray cluster at network `address`; `is_here`: this process is on it.

    `memory_bytes` are Ray's resource: what `ray start --memory` says, or most of what was free.
    """

    node_id: str
    address: str
    is_here: bool
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeNode:
    """The node that all of an engine's chips are to be on: a `number` that goes round the nodes,
    and the memory that the chips need there.
    """

    number: int
    need_bytes: int

    def among(self, nodes: Sequence[RayNode]) -> tuple[RayNode, ...]:
        """Those of `nodes` that take the chips: the home, or all where its memory is too little."""
        home = nodes[self.number % len(nodes)]
        return (home,) if self.need_bytes <= home.memory_bytes else tuple(nodes)


def spread_chips(chips: int, nodes: Sequence[RayNode], tray_chips: int) -> tuple[RayNode, ...]:
    """The node of each of `chips`: whole trays, in runs equal within one tray.

    With fewer trays than nodes, runs of single chips.
    """
    trays = -(-chips // tray_chips)
    unit_chips = tray_chips if trays >= len(nodes) else 1
    units = -(-chips // unit_chips)
    return tuple(nodes[chip // unit_chips * len(nodes) // units] for chip in range(chips))


logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 80_000_000
"""Ray's smallest object store is about 75 MB; step data does not pass through it."""

_LISTENS_TIMEOUT_S = 5.0
_TRAY_CHIPS = 4

_CHIP_ENVIRONMENT = {
    # One thread per chip: 144 chips share the host's cores, and a fixed thread count keeps the
    # order of sums fixed.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}

_OWN_RAY_ENVIRONMENT = {
    **_CHIP_ENVIRONMENT,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers the lowest priority but a few; chips are what the engine waits for.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A worker is started for a chip alone, and all at once: forking them is cheap.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_maximum_startup_concurrency": "160",
    # These are not read, and reporting them takes a fifth of what an idle chip costs.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    # Ray would end chips when other programs fill the host; none can be started elsewhere.
    "RAY_memory_monitor_refresh_ms": "0",
    # Seconds that Ray's own server may take to start: 30 were too few on a host with a load of 50.
    "RAY_gcs_server_port_wait_time_s": "120",
}


class _InstalledCode(JobConfig):  # type: ignore[misc]  # Ray's classes have no types
    """A job whose workers import installed code alone: by default Ray puts the driver's working
    directory, and its script's, before all else.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChipProcess:
    """A chip's Ray actor and its two calls; `served` lasts while it serves."""

    actor: Any
    loaded: Any
    served: Any


class RaySession:
    """The Ray that chips are started in, with token authentication.

    `start` and `stop` are called once each; `stop` is idempotent and removes the session's files.
    `ray_address`: "host:port" of a running cluster with a node on this machine, or "auto" as Ray
    finds one; its token comes from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or the user's file. None
    starts a private Ray that counts `cpus` for tasks; chips ask for none. Chips are spread over
    the nodes, or stay at `home` while it lives and has room for them.
    """

    def __init__(
        self, ray_address: str | None = None, *, cpus: int = 1, home: HomeNode | None = None
    ) -> None:
        self._ray_address = ray_address
        self._home = home
        self._at_home: tuple[RayNode, ...] = ()
        self._cpus = cpus
        self._directory: ScratchDirectory | None = None
        self._fork_server: ForkServer | None = None
        self._chips: list[ChipProcess] = []
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._watch: DaemonWatch | None = None
        self._is_started = False

    def start(self) -> None:
        """Start Ray's daemons as children that end with this process; or join.

        Raises ConfigError for a cluster that cannot be joined, or without token authentication.
        """
        refuse_open_ray()
        self._is_started = True
        if self._ray_address is None:
            self._start_own()
        else:
            self._join(self._ray_address)

    def _start_own(self) -> None:
        try:
            self._start_daemons()
        except Exception:  # a daemon ended or was late, for which Ray has no one type
            logger.warning("Ray did not start; trying once more", exc_info=True)
            ray.shutdown()
            self._remove_files()
            self._start_daemons()
        assert is_token_auth_enabled()
        self._daemons = own_daemons()

    def _start_daemons(self) -> None:
        self._directory = ScratchDirectory("ultraserve-ray-")
        with (
            own_token(self._directory.path),
            loopback_only(),
            variables({n: v for n, v in _OWN_RAY_ENVIRONMENT.items() if n not in os.environ}),
            sealed_children(),
            _own_signal_handlers(),
            without_sigterm(),
        ):
            self._fork_server = ForkServer(self._directory.path, dict(os.environ))
            with _interpreter(self._fork_server.executable):
                ray.init(
                    address="local",
                    job_config=_InstalledCode(),
                    num_cpus=self._cpus,
                    num_gpus=0,
                    include_dashboard=False,
                    configure_logging=True,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    # Ray opens its directory to everyone; the one around it stays its user's alone.
                    _temp_dir=str(self._directory.path / "r"),
                    _node_ip_address="127.0.0.1",
                )

    def _join(self, ray_address: str) -> None:
        forget_token()
        is_closed = False
        try:
            address = address_of(ray_address)
            check_listens(address)
            is_closed = wants_token(address)
            if is_closed:
                _connect(address)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                "ray_address",
                ray_address,
                "a running Ray cluster that this machine is a node of, with its token in "
                f"RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH ({lines[0]})",
            ) from error
        if not is_closed or not is_token_auth_enabled():
            ray.shutdown()
            raise ConfigError(
                "ray_address",
                ray_address,
                "a Ray cluster with token authentication (RAY_AUTH_MODE=token): a client of "
                "another could read the chips' key, and run code here",
            )

    def nodes(self) -> tuple[RayNode, ...]:
        """Live nodes: this process's own first, then by address."""
        here = ray.get_runtime_context().get_node_id()
        nodes = [
            RayNode(
                node_id=node["NodeID"],
                address=node["NodeManagerAddress"],
                is_here=node["NodeID"] == here,
                memory_bytes=int(node["Resources"].get("memory", 0)),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        return tuple(sorted(nodes, key=lambda node: (not node.is_here, node.address, node.node_id)))

    def _chip_nodes(self) -> tuple[RayNode, ...]:
        """Live nodes that take chips; a home that was chosen stays, however others come and go."""
        nodes = self.nodes()
        if self._home is None:
            return nodes
        if len(self._at_home) != 1 or self._at_home[0] not in nodes:
            self._at_home = self._home.among(nodes)
        return self._at_home

    def channel_host(self) -> str | None:
        """This node's address for chips on other nodes; None where all chips will be here."""
        if all(node.is_here for node in self._chip_nodes()):
            return None
        return self.nodes()[0].address

    def place_chips(self, chips: int) -> tuple[RayNode, ...]:
        """The node of each chip; see `spread_chips` and `HomeNode`."""
        return spread_chips(chips, self._chip_nodes(), _TRAY_CHIPS)

    def start_chip(self, *, node: RayNode | None = None, **arguments: Any) -> ChipProcess:
        """Start one `ChipWorker` on `node`, or anywhere; returns at once."""
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
        if node is not None:
            strategy = NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
            options["scheduling_strategy"] = strategy
        actor = ray.remote(**options)(ChipWorker).remote(**arguments)
        chip = ChipProcess(
            actor=actor, loaded=actor.wait_loaded.remote(), served=actor.serve.remote()
        )
        self._chips.append(chip)
        return chip

    def wait_loaded(self, chips: Sequence[ChipProcess], timeout_s: float) -> None:
        """Wait until each has its share; raises Ray's error when one was not made in time."""
        ray.get([chip.loaded for chip in chips], timeout=timeout_s)

    def kill(self, chip: ChipProcess) -> None:
        """Kill a chip's process for good, without waiting; idempotent."""
        ray.kill(chip.actor, no_restart=True)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost` with the name of a vital daemon that ends before `stop`.

        From another thread, at most once; never for a joined cluster.
        """
        assert self._watch is None, "watched twice"
        vital = {name: self._daemons[name].pid for name in VITAL if name in self._daemons}
        if vital:
            self._watch = DaemonWatch(vital, lost)

    def stop(self) -> None:
        """Stop the chips and a private Ray, and delete the session's files."""
        if not self._is_started:
            return
        self._is_started = False
        if self._watch is not None:
            self._watch.stop()
        try:
            self._stop_ray()
        except Exception:
            logger.exception("Ray did not shut down cleanly; its directory is removed all the same")
        self._chips = []
        self._remove_files()

    def _remove_files(self) -> None:
        if self._fork_server is not None:
            self._fork_server.stop()
            self._fork_server = None
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def _stop_ray(self) -> None:
        if self._ray_address is not None:
            for chip in self._chips:
                self.kill(chip)
        ray.shutdown()


def _connect(ray_address: str) -> None:
    with _own_signal_handlers():
        ray.init(
            address=ray_address,
            job_config=_InstalledCode(_py_driver_sys_path=_code_paths()),
            configure_logging=True,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": {**_CHIP_ENVIRONMENT, SAFE_PATH: "1"}},
        )


def _code_paths() -> list[str]:
    """Paths at which workers of a joined cluster find a checkout; none for installed code."""
    return [] if CODE_ROOT in site.getsitepackages() else [CODE_ROOT]


def address_of(ray_address: str) -> str:
    """Host and port of a cluster; those of "auto" as Ray has them. Raises ConnectionError."""
    if ray_address != "auto":
        return ray_address
    found: str = get_ray_address_from_environment(ray_address, None)
    return found


def check_listens(ray_address: str) -> None:
    """Raise OSError or ValueError at once, where Ray would try for most of a minute."""
    host, _, port = ray_address.rpartition(":")
    socket.create_connection((host, int(port)), _LISTENS_TIMEOUT_S).close()


@contextlib.contextmanager
def _interpreter(executable: str) -> Iterator[None]:
    before, sys.executable = sys.executable, executable
    try:
        yield
    finally:
        sys.executable = before


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Restore the handlers that Ray replaces: the fleet's owner decides how it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
