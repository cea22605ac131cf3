"""A real Prometheus for tests: on loopback, in its own folder, ended with its test.

    with PrometheusServer(DEPLOYED, targets=["127.0.0.1:8000"], folder=tmp_path) as prometheus:
        prometheus.wait_targets_up()
        (sample,) = prometheus.query("ultraserve_chips")

Runs the configuration of `deploy/prometheus` with another targets file, and with scrapes and
evaluations every second instead of five, so that a rate takes seconds, not minutes.
"""

import contextlib
import datetime
import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.e2e.server_process import HOST, ROOT, free_port
from tests.system_programs import program

DEPLOYED = ROOT / "deploy" / "prometheus"
"""prometheus.yml with its rules and targets."""

INTERVAL_S = 1
WAIT_S = 60.0
_END_S = 20.0
_POLL_S = 0.1


class QueryRefused(Exception):
    """Prometheus refused an expression; has its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of an instant query; `labels` has `__name__` where the expression keeps it."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a range query: (unix seconds, value) in order."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One scraped address; `health` is up, down or unknown."""

    job: str
    url: str
    health: str
    error: str
    scrape_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; `kind` is recording or alerting, `health` is ok, err or unknown (not yet run).

    `state` is an alert's: inactive, pending or firing; empty for a recording.
    """

    name: str
    kind: str
    health: str
    error: str
    state: str


class PrometheusServer:
    """A context that runs it; without the program the test is skipped.

    Args:
        configuration: a folder like deploy/prometheus, copied into `folder`.
        targets: addresses (host:port) of scraped servers.
        folder: an empty one for the copy (`settings`), samples and log.
        file: the configuration's name.
    """

    def __init__(
        self,
        configuration: Path,
        *,
        targets: Sequence[str],
        folder: Path,
        file: str = "prometheus.yml",
    ) -> None:
        self._command = program("prometheus")
        self._targets = tuple(targets)
        self.settings = folder / "prometheus"
        self._file = self.settings / file
        self._data = folder / "data"
        self._log = folder / "log"
        shutil.copytree(configuration, self.settings)
        hasten(self._file)
        self._write_targets()

    def __enter__(self) -> Self:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        words = (
            f"--config.file={self._file}",
            f"--storage.tsdb.path={self._data}",
            f"--web.listen-address={HOST}:{port}",
            "--log.level=warn",
        )
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                (self._command, *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"no_proxy": HOST},
            )
        self._client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        try:
            self.wait_until(self._is_ready, "being ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def scrape(self, *targets: str) -> None:
        """Scrape exactly these addresses from now on; Prometheus sees the file change."""
        self._targets = targets
        self._write_targets()

    def query(self, expression: str, *, at_unix_s: float | None = None) -> list[Sample]:
        """The samples of an instant query; a scalar is one without labels.

        Raises QueryRefused for an invalid expression.
        """
        given: dict[str, str | float] = {"query": expression}
        if at_unix_s is not None:
            given["time"] = at_unix_s
        data = self._ask("query", given)
        if data["resultType"] in {"scalar", "string"}:
            return [Sample(labels={}, value=float(data["result"][1]))]
        return [
            Sample(labels=one["metric"], value=float(one["value"][1])) for one in data["result"]
        ]

    def query_range(
        self, expression: str, *, begin_unix_s: float, end_unix_s: float, step_s: float
    ) -> list[Series]:
        """The series of a range query, as a dashboard's; raises QueryRefused."""
        times = {"start": begin_unix_s, "end": end_unix_s, "step": step_s}
        data = self._ask("query_range", {"query": expression, **times})
        return [
            Series(
                labels=one["metric"],
                points=tuple((float(when), float(value)) for when, value in one["values"]),
            )
            for one in data["result"]
        ]

    def label_values(self, label: str, *, match: str) -> list[str]:
        """The values of a label in series selected by `match`, as a variable asks."""
        found: list[str] = self._ask(f"label/{label}/values", {"match[]": match})
        return found

    def metadata(self) -> dict[str, str]:
        """The kind (counter, gauge, histogram, ...) of every family of the targets."""
        return {name: told[0]["type"] for name, told in self._ask("metadata", {}).items()}

    def targets(self) -> list[Target]:
        return [
            Target(
                job=one["labels"]["job"],
                url=one["scrapeUrl"],
                health=one["health"],
                error=one["lastError"],
                scrape_s=one["lastScrapeDuration"],
            )
            for one in self._ask("targets", {"state": "active"})["activeTargets"]
        ]

    def rules(self) -> list[Rule]:
        return [
            Rule(
                name=one["name"],
                kind=one["type"],
                health=one["health"],
                error=one.get("lastError", ""),
                state=one.get("state", ""),
            )
            for group in self._ask("rules", {})["groups"]
            for one in group["rules"]
        ]

    def firing(self) -> set[str]:
        return {rule.name for rule in self.rules() if rule.state == "firing"}

    def wait_until(
        self, condition: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until `condition` holds, while Prometheus runs."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, f"it ended before {what}:\n{self.log()}"
            assert time.monotonic() < end_s, f"no {what} in {timeout_s:g} s:\n{self.log()}"
            time.sleep(_POLL_S)  # polls another process

    def wait_targets_up(self) -> None:
        """Wait until every named target has been scraped without an error."""
        wanted = set(self._targets)

        def up() -> bool:
            healthy = [each.url for each in self.targets() if each.health == "up"]
            return wanted == {urllib.parse.urlsplit(url).netloc for url in healthy}

        self.wait_until(up, f"scrape of {sorted(wanted)}")

    def wait_scrapes(self, count: int = 2) -> None:
        """Wait until every target has been scraped and every rule run `count` more times."""
        begin_unix_s = time.time()
        self.wait_targets_up()

        def done() -> bool:
            runs = self._rule_runs_unix_s() + self._scrapes_unix_s()
            return min(runs, default=begin_unix_s) > begin_unix_s + count * INTERVAL_S

        self.wait_until(done, f"{count} more scrapes")

    def _scrapes_unix_s(self) -> list[float]:
        active = self._ask("targets", {"state": "active"})["activeTargets"]
        return [_unix_s(one["lastScrape"]) for one in active]

    def _rule_runs_unix_s(self) -> list[float]:
        groups = self._ask("rules", {})["groups"]
        return [_unix_s(one["lastEvaluation"]) for group in groups for one in group["rules"]]

    def _ask(self, path: str, given: Mapping[str, str | float]) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=dict(given)).json()
        if answer["status"] != "success":
            raise QueryRefused(f"{given.get('query', path)}: {answer['error']}")
        return answer["data"]

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        return False

    def _write_targets(self) -> None:
        folder = self.settings / "targets"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        unfinished = self.settings / "targets.unfinished"
        unfinished.write_text(yaml.safe_dump([{"targets": list(self._targets)}]))
        unfinished.replace(folder / "tested.yml")  # Prometheus never reads half of it


def hasten(configuration: Path) -> None:
    """Make a copy of prometheus.yml scrape and evaluate every second."""
    settings = yaml.safe_load(configuration.read_text())
    settings["global"] |= {
        "scrape_interval": f"{INTERVAL_S}s",
        "scrape_timeout": f"{INTERVAL_S}s",
        "evaluation_interval": f"{INTERVAL_S}s",
    }
    for job in settings["scrape_configs"]:
        job.pop("scrape_interval", None)
        job.pop("scrape_timeout", None)
    configuration.write_text(yaml.safe_dump(settings, sort_keys=False))


def _unix_s(text: str) -> float:
    """Seconds of Prometheus's timestamps; nanoseconds are cut to what Python reads."""
    head, _, rest = text.partition(".")
    zone = "".join(rest.lstrip("0123456789")) if rest else ""
    return datetime.datetime.fromisoformat(head + zone if rest else text).timestamp()
