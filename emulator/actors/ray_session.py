"""Starts and stops the Ray that the chips live in: private, local, quiet, and gone afterwards."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import ray

from emulator.actors.chip_actor import ChipActor
from emulator.actors.scratch_directory import ScratchDirectory

logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 80_000_000
"""Ray's smallest object store is about 75 MB; step data does not pass through it."""

_WORKER_ENVIRONMENT = {
    # One thread per chip: 144 chips share the host's cores, and a fixed thread count keeps the
    # order of sums fixed.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class RaySession:
    """A Ray instance of our own, with token authentication as Ray has it by default.

    `start` and `stop` are called once each; `stop` is idempotent and removes the session's files.
    """

    def __init__(self) -> None:
        self._directory: ScratchDirectory | None = None

    def start(self) -> None:
        """Start Ray's daemons as children of this process; they end when it ends."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray gives its workers the lowest priority but a few; chips are what the engine waits for.
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._directory = ScratchDirectory("ultraserve-ray-")
        with _own_signal_handlers():
            ray.init(
                address="local",
                num_cpus=1,
                num_gpus=0,
                include_dashboard=False,
                configure_logging=True,
                logging_level=logging.ERROR,
                log_to_driver=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                # Ray opens its directory to everyone; the one around it stays its user's alone.
                _temp_dir=str(self._directory.path / "r"),
                _node_ip_address="127.0.0.1",
                runtime_env={"env_vars": _WORKER_ENVIRONMENT},
            )

    def start_chip(self, **arguments: Any) -> Any:
        """Start one `ChipActor`; returns its Ray handle at once."""
        remote = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(ChipActor)
        return remote.remote(**arguments)

    def get(self, references: Any, timeout_s: float) -> Any:
        """Wait for Ray calls."""
        return ray.get(references, timeout=timeout_s)

    def stop(self) -> None:
        """Stop every daemon and actor and delete the session's files."""
        if self._directory is None:
            return
        try:
            ray.shutdown()
        except Exception:
            logger.exception("Ray did not shut down cleanly; its directory is removed all the same")
        self._directory.remove()
        self._directory = None


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Put back the handlers that Ray replaces: whoever runs the fleet decides how it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
