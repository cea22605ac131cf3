"""What a running server says of itself: its metrics, and our commands' answers of its control."""

import subprocess

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess


def metrics(server: ServerProcess) -> dict[str, float]:
    """Every sample of /metrics by its name, summed over labels."""
    page = httpx.get(f"{server.url}/metrics").text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def growth(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before.get(name, 0.0)


def ask(server: ServerProcess, *arguments: str) -> str:
    """What a command says that asks the server's control service."""
    command = [*ULTRASERVE, *arguments, "--address", f"{HOST}:{server.control_port}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
