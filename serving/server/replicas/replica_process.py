"""The process of one replica: `ultraserve serve` on its chips, as a child of the service's process.

It listens on loopback alone, for a key of this run, and ends with its parent.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from emulator.memory.neuron_environment import NUM_CORES, VISIBLE_CORES
from serving.access.process_listing import API_KEY_FLAG, API_KEY_VARIABLE
from serving.process.child_launcher import launched
from serving.process.parent_death_watchdog import clear_sockets
from serving.server.replicas.drawn_ports import HOST, DrawnPorts
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.replica_roles import KV_HOST_VARIABLE, KV_PORT_VARIABLE
from startup.import_path import child_environment

CONTROL_KEY_FLAG: Final = "--control-key-file"

_DROPPED: Final = frozenset(
    {
        *("--replicas", "--router", "--replica-roles", "--replica-silence", "--host", "--port"),
        *("--batch-directory", "--batch-file-bytes", "--batch-requests", "--batch-key-bytes"),
        *("--control-host", "--control-port", "--console-port", CONTROL_KEY_FLAG),
        *("--ultraserver", "--api-keys", "--ssl-cert-reqs"),
        *("--tls-cert", "--ssl-certfile", "--tls-key", "--ssl-keyfile"),
        *("--tls-client-ca", "--ssl-ca-certs"),
    }
)
"""Options of one value that are the service's own, or each replica's."""

_QUIET: Final = "--disable-uvicorn-access-log"
"""The service asks each replica every second."""


def replica_words(
    words: Sequence[str], place: ReplicaPlace, port: int, more: Sequence[str] = ()
) -> list[str]:
    """The words of `ultraserve` for one replica, from the service's, `serve` first, and `more`."""
    kept: list[str] = []
    skipped = 0
    for word in words:
        is_flag = word.startswith("--")
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-") if is_flag else name
        if is_flag and name in (*_DROPPED, API_KEY_FLAG):
            skipped = 0 if equals else len(words) if name == API_KEY_FLAG else 1
        elif skipped and not word.startswith("-"):
            skipped -= 1
        else:
            skipped = 0
            kept.append(word)
    own = {
        "--host": HOST,
        "--port": port,
        "--control-port": place.control_port,
        "--console-port": place.console_port,
        "--ultraserver": place.ultraserver,
    }
    if place.ray_node is not None:
        own["--ray-node"] = place.ray_node
    return [*kept, *more, _QUIET, *(str(part) for pair in own.items() for part in pair)]


class ReplicaProcess:
    """One replica's process, started anew after each end; `words` are the service's, `more` its
    own, and `ports` are drawn by all replicas of the service.
    """

    def __init__(
        self,
        words: Sequence[str],
        place: ReplicaPlace,
        *,
        key: str,
        environment: Mapping[str, str],
        ports: DrawnPorts,
        more: Sequence[str] = (),
    ) -> None:
        self._words = words
        self._more = more
        self._place = place
        self._ports = ports
        self._drawn: tuple[int, ...] = ()
        self._environment = child_environment(environment) | {
            API_KEY_VARIABLE: key,
            VISIBLE_CORES: place.visible_cores,
        }
        self._environment.pop(NUM_CORES, None)
        self._process: asyncio.subprocess.Process | None = None
        self.kv_port = 0
        """Of the process that runs, on loopback; 0 where replicas exchange no KV."""

    async def start(self) -> tuple[int, str]:
        """Start it; its process id, and its HTTP server's address on a free port."""
        self._ports.give_back(self._drawn)
        self._drawn = port, kv_port = self._ports.draw(), self._ports.draw()
        words = replica_words(self._words, self._place, port, self._more)
        if self._place.role is not None:
            self._environment |= {KV_HOST_VARIABLE: HOST, KV_PORT_VARIABLE: str(kv_port)}
            self.kv_port = kv_port
        command = [sys.executable, "-P", "-m", "serving.main", *words]
        self._process = await asyncio.create_subprocess_exec(
            *launched(command),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for the service, which ends it
        )
        return self._process.pid, f"http://{HOST}:{port}"

    @property
    def is_started(self) -> bool:
        """Whether it was ever started."""
        return self._process is not None

    async def ended(self, wall_s: float | None = None) -> int | None:
        """Its exit code once it has ended, and nothing is left of it; None after `wall_s` without
        an end.
        """
        assert self._process is not None
        try:
            code = await asyncio.wait_for(self._process.wait(), wall_s)
        except TimeoutError:
            return None
        clear_sockets(self._process.pid)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Signal it, if it runs; SIGKILL reaches all of its session's processes."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
