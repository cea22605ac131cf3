"""A running server's metrics, and our commands' answers from its control service."""

import os
import subprocess

import httpx
from prometheus_client.parser import text_string_to_metric_families

from serving.access.control_key import find_control_key
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess


def metrics(server: ServerProcess, key: str = "") -> dict[str, float]:
    """Every sample of /metrics by name, summed over labels; with a client's key, if needed."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    page = httpx.get(f"{server.url}/metrics", headers=headers).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def growth(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before.get(name, 0.0)


def control(server: ServerProcess, timeout_s: float = 120.0) -> ControlClient:
    """The server's control service, with the key of the server's folder."""
    key = find_control_key(server.control_port, server.own_environment)
    return ControlClient(ControlAddress(port=server.control_port), timeout_s=timeout_s, key=key)


def ask(server: ServerProcess, *arguments: str) -> str:
    """Output of a command that asks the server's control service."""
    command = [*ULTRASERVE, *arguments, "--address", f"{HOST}:{server.control_port}"]
    environment = os.environ | server.own_environment
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    return done.stdout
