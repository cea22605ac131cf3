"""Runs functions on the CPUs of a Ray cluster: one of this process's own, or one that it joins."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from traceback import format_exc
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from emulator.actors.ray_session import RaySession, address_of, check_listens
from emulator.errors import ConfigError, WorkersLost
from startup.import_path import CODE_ROOT

Task = TypeVar("Task")
Result = TypeVar("Result")

LOCAL: Final = "local"
"""Ray's word for a cluster of this process's own, on this machine."""

_PACKAGES: Final = ("emulator", "loadgen", "serving", "startup")
_ARITHMETIC: Final = ("llvmlite", "numba", "numpy", "scipy")
"""What computes the figures, beside our own code."""

_AHEAD: Final = 4
"""Tasks that are sent, for each CPU, before the first of them is done."""
_LOOK_S: Final = 5.0
"""A cluster that is gone is found out so soon; Ray itself waits for a minute, and ends us then."""


class RayTasks:
    """The cluster at `ray_address`: "host:port", "auto" or "local", as Ray has them.

    Between `start` and `stop`. `cpus` are those of the whole cluster.
    """

    def __init__(self, ray_address: str) -> None:
        self._address = ray_address
        self._is_own = ray_address == LOCAL
        self._session = RaySession(None if self._is_own else ray_address, cpus=os.cpu_count() or 1)
        self.cpus = 1

    def start(self) -> None:
        """Join the cluster, or start it; raises ConfigError for one that cannot be joined."""
        self._session.start()
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._address = LOCAL if self._is_own else address_of(self._address)

    def results(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        """Results of `function`, a module's, in the tasks' order; a lost node's tasks run again.

        Raises what `function` raises, ConfigError for a node with other code than this process,
        and WorkersLost when the cluster, or a task's process time and again, is gone. The few tasks
        that are sent by then go on until `stop`: Ray 2.60 ends the process that cancels a task just
        as it is done.
        """
        remote = ray.remote(num_cpus=1)(_call)
        checksum = code_checksum()
        waiting, sent = iter(tasks), deque[Any]()
        while True:
            ahead = _AHEAD * self.cpus - len(sent)
            sent += [remote.remote(checksum, function, task) for task in islice(waiting, ahead)]
            if not sent:
                return
            yield self._get(sent[0])
            sent.popleft()

    def _get(self, reference: Any) -> Any:
        try:
            while not ray.wait([reference], timeout=_LOOK_S)[0]:
                if not self._is_own:
                    check_listens(self._address)
            result, failure = ray.get(reference)
        except RayTaskError:
            raise
        except (RayError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise WorkersLost(f"the Ray cluster at {self._address}: {reason}") from error
        if failure is not None:
            cause, traceback = failure
            cause.add_note(traceback)
            raise cause
        return result

    def stop(self) -> None:
        """Leave the cluster, or end it if it is our own, and with it all tasks; idempotent."""
        self._session.stop()


def _call(
    checksum: str, function: Callable[[Task], Result], task: Task
) -> tuple[Result | None, tuple[Exception, str] | None]:
    """The result, or the error and its traceback, which Ray prints if it is not fetched."""
    try:
        if code_checksum() != checksum:
            raise ConfigError(
                "ray-address",
                ray.util.get_node_ip_address(),
                "a node that has the same code, and the same numba and numpy, as this machine: "
                "another's figures are not comparable",
            )
        return function(task), None
    except Exception as error:  # noqa: BLE001  raised by `_get`
        return None, (error, format_exc())


@cache
def code_checksum() -> str:
    """A checksum of all that decides a result: our packages' files, and what computes."""
    total = sha256()
    for name in _ARITHMETIC:
        total.update(f"{name} {version(name)}\n".encode())
    for package in _PACKAGES:
        root = Path(CODE_ROOT) / package
        for path in sorted(root.rglob("*.py")) + sorted(root.glob("data/*.json")):
            content = path.read_bytes()
            total.update(f"{path.relative_to(CODE_ROOT)} {len(content)}\n".encode())
            total.update(content)
    return total.hexdigest()
