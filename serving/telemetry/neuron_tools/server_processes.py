"""Processes of a server on this machine, found by its listening port.

A Neuron application is the listening process of `ultraserve serve` with its descendants, chips
among them.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import psutil

from serving.telemetry.neuron_tools.device_inventory import DeviceProcess

TAG_VARIABLE: Final = "NEURON_PROCESS_TAG"
"""neuron-monitor's variable that names an application."""

_ENGINE: Final = "VLLM::EngineCore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcesses:
    """`root` listens; `tag` is its environment's name for it, else its number."""

    root: DeviceProcess
    tag: str

    def pids(self) -> tuple[int, ...]:
        """All running now, the root first; none when it is gone."""
        try:
            children = psutil.Process(self.root.pid).children(recursive=True)
        except psutil.Error:
            return ()
        return (self.root.pid, *(child.pid for child in children))

    def using_devices(self) -> tuple[DeviceProcess, ...]:
        """The root, and the engine's process, which manages all devices for it."""
        shown = [self.root]
        for pid in self.pids()[1:]:
            command = _command(pid)
            if command.startswith(_ENGINE):
                shown.append(DeviceProcess(pid=pid, command=command, runtime=False))
        return tuple(shown)


def server_processes(host: str, port: int) -> ServerProcesses | None:
    """The server that listens on `port` of this machine.

    None for another machine's `host`, no listener, another user's, or a system that shows none.
    """
    if not _is_this_machine(host):
        return None
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # macOS tells root alone
        return None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
        if listens and connection.pid is not None:
            pid = connection.pid
            root = DeviceProcess(pid=pid, command=_command(pid))
            return ServerProcesses(root=root, tag=_tag(pid))
    return None


def this_process() -> DeviceProcess:
    """This command's own process."""
    return DeviceProcess(pid=os.getpid(), command=_command(os.getpid()), runtime=False)


def _is_this_machine(host: str) -> bool:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {each.address for cards in psutil.net_if_addrs().values() for each in cards}
    return any(ipaddress.ip_address(address).is_loopback or address in own for address in found)


def _command(pid: int) -> str:
    """The command line, without the interpreter and the program's directory."""
    try:
        words = [word for word in psutil.Process(pid).cmdline() if word]
    except psutil.Error:
        return ""
    if len(words) > 1 and PurePath(words[0]).name.startswith("python") and words[1][0] != "-":
        del words[0]
    return " ".join((PurePath(words[0]).name, *words[1:])) if words else ""


def _tag(pid: int) -> str:
    try:
        return psutil.Process(pid).environ().get(TAG_VARIABLE) or str(pid)
    except psutil.Error:
        return str(pid)
