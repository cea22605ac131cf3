"""Every command of README and the guides is run, or the table of those that are not says why.

A page's commands run in their order in one folder, shortened (`SHORTER`) and on ports of their own:
a server is left running until the page shows the next one, and a page without one gets README's.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from serving.process.front_program import PROGRAM_VARIABLE
from tests.benchmarks.front_arguments import FrontArguments
from tests.deploy.guides.shown_commands import (
    FOLLOWED,
    NOT_RUN,
    SHORTER,
    Kind,
    Shown,
    kind,
    shortened,
    shown_commands,
)
from tests.e2e.gateway_process import find_gateway
from tests.e2e.server_process import HOST, ROOT, ServerProcess, free_port
from tests.serving.analysis.validate.made_up_measurements import write_rows
from tests.serving.commands.small_day import hours

SHOWN = shown_commands()
BIN = Path(sys.prefix) / "bin"
COMMAND_TIMEOUT_S = 900.0
STREAM_S = 4.0
REFUSED_CODE = 2
LONG_REQUEST = (
    "curl --silent --output /dev/null {url}/v1/completions -H 'Content-Type: application/json' "
    """-d '{{"model": "qwen3-30b-a3b", "prompt": "a", "max_tokens": 400, "ignore_eos": true}}'"""
)
BATCH_LINE = (
    '{"custom_id": "line-1", "method": "POST", "url": "/v1/completions", '
    '"body": {"model": "small-moe", "prompt": "def main():", "max_tokens": 16}}'
)
TRACE_HEADING = "TIMESTAMP,ContextTokens,GeneratedTokens"


def of_kind(*kinds: Kind) -> list[Shown]:
    return [each for each in SHOWN if kind(each) in kinds]


def named(shown: Shown) -> str:
    return f"{Path(shown.page).stem}: {shown.line[:60]}"


def abbreviated(line: str) -> str:
    return line.removeprefix(".venv/bin/ultraserve ")[:80]


def served_pages() -> list[str]:
    return sorted({each.page for each in of_kind(Kind.SERVER, Kind.ASKS)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, with the files that guides take for granted."""
    for name in ("deploy", "emulator", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    hours(tmp_path)
    stamps = [f"2023-11-16 18:{at // 60:02}:{at % 60:02}.0000000" for at in range(200)]
    rows = [f"{stamp},{300 + at % 7},{3 + at % 4}" for at, stamp in enumerate(stamps)]
    (tmp_path / "requests.csv").write_text("\n".join([TRACE_HEADING, *rows]) + "\n")
    rates = [f"2024-05-10 {hour:02}:00,{100 + hour},{hour}" for hour in range(24)]
    (tmp_path / "rates.csv").write_text("\n".join(["start,ok,failed", *rates]) + "\n")
    bad = [TRACE_HEADING, f"{stamps[0]},10,5", f"{stamps[1]},10,-1"]
    (tmp_path / "bad.csv").write_text("\n".join(bad) + "\n")
    (tmp_path / "night.jsonl").write_text(BATCH_LINE + "\n")
    write_rows(tmp_path / "inferencex_dsr1.csv")
    write_rows(tmp_path / "inferencex_dsr1_more.csv")
    return tmp_path


def environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "120", **more}


def run(
    line: str, folder: Path, more: Mapping[str, str], timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a line of shell to its end."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment(more),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def expect(shown: Shown, done: subprocess.CompletedProcess[str]) -> None:
    """A command ends well, or is refused in the words that its page shows."""
    said = done.stdout + done.stderr
    if shown.refused:
        assert done.returncode == REFUSED_CODE, said
        assert shown.printed in said
    else:
        assert done.returncode == 0, f"{shown.page}: {shown.line}\n{said[-3000:]}"


def test_every_command_is_run_or_known_not_to_be() -> None:
    unknown = [f"{each.page}: {each.line}" for each in SHOWN if kind(each) is None]

    assert unknown == []


def test_a_command_that_is_not_known_has_no_kind() -> None:
    for line in ("kubectl get pods", "ultraserve frobnicate", "ls", "sudo make install"):
        assert kind(Shown(page="README.md", line=line)) is None, line


def test_every_page_and_pattern_that_is_left_out_is_still_shown() -> None:
    assert set(FOLLOWED) <= {each.page for each in SHOWN}
    for pattern in NOT_RUN:
        assert any(re.match(pattern, each.line) for each in SHOWN), pattern
    for pattern, _ in SHORTER:
        assert any(re.search(pattern, each.line) for each in SHOWN), pattern


@pytest.mark.parametrize("shown", of_kind(Kind.QUICK), ids=named)
def test_a_quick_command_runs(shown: Shown, folder: Path) -> None:
    expect(shown, run(shown.line, folder, {}))


@pytest.mark.slow
@pytest.mark.fleet
@pytest.mark.timeout(COMMAND_TIMEOUT_S + 60)
@pytest.mark.parametrize(
    "line", sorted({shortened(each.line) for each in of_kind(Kind.LONG)}), ids=abbreviated
)
def test_a_command_that_needs_no_server_runs(line: str, folder: Path) -> None:
    expect(Shown(page="", line=line), run(line, folder, {}))


class Followed:
    """A page being followed: its folder, and the server that its commands ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: ServerProcess | None = None
        self.front_port: int | None = None
        self.made = {"us-...": "", "file-...": "", "batch_...": ""}
        self._servers = contextlib.ExitStack()

    def serve(self, shown: Shown) -> None:
        """Start a server, in place of the one before, and wait until it answers."""
        self.end()
        port, control_port = free_port(), free_port()
        line = re.sub(r"\s*&$|--(?:port|control-port) \d+", "", shown.line)
        line = re.sub(r"--grpc-port \d+", f"--grpc-port {free_port()}", line)
        line += f" --port {port}"
        more = {}
        if "--front smg" in line:
            self.front_port = free_port()
            line += f" --front-port {self.front_port} --front-metrics-port {free_port()}"
            more[PROGRAM_VARIABLE] = find_gateway() or pytest.skip("needs smg (make gateway-deps)")
        if "vllm" not in line:
            line += f" --control-port {control_port}"
        server = ServerProcess(
            *("bash", "-c", f"exec env {line}"),
            port=port,
            control_port=control_port,
            environment=environment(more),
            cwd=self.folder,
        )
        self.server = self._servers.enter_context(server)
        server.wait_ready()
        if self.front_port is not None:
            FrontArguments(url=f"http://{HOST}:{self.front_port}").wait_ready()

    def ask(self, shown: Shown) -> None:
        """Run a command against the server."""
        if self.server is None:
            self.serve(next(each for each in SHOWN if kind(each) is Kind.SERVER))
        server = self.server
        assert server is not None
        line = self.addressed(shown, server)
        more = {**server.own_environment, "URL": server.url}
        if " profile " in line:  # a profile wants steps to show
            line = f"({LONG_REQUEST.format(url=server.url)} &); {line}"
        if " watch" in line:
            line = f"timeout --signal=INT {STREAM_S} {line} || test $? -eq 124"
        done = run(line, self.folder, more)
        expect(shown, done)
        for name in ("file-...", "batch_..."):
            if made := re.search(rf'"id":"({name[:-3]}[0-9a-f]+)"', done.stdout):
                self.made[name] = made[1]
        self.keep_results()

    def addressed(self, shown: Shown, server: ServerProcess) -> str:
        """The line with the server's ports, and what was made in place of the page's names."""
        line = shortened(shown.line)
        for name, made in self.made.items():
            line = line.replace(name, made)
        line = re.sub(r"(?:localhost|127\.0\.0\.1):8000", f"{HOST}:{server.port}", line)
        line = line.replace("127.0.0.1:8080", f"{HOST}:{self.front_port}")
        program, *words = shown.words
        if words[0] == "replicas":
            line += f" --url {server.url}"
        elif Path(program).name == "ultraserve":
            line += f" --address {HOST}:{server.control_port}"
        elif words[0] in ("run", "sweep") and "--url" not in words:
            line = re.sub(r"(ultraserve-loadgen \w+)", rf"\1 --url {server.url}", line)
        return line

    def keep_results(self) -> None:
        """The files of other runs that a page compares with its own."""
        for have, others in (
            ("before.jsonl", ("after.jsonl",)),
            ("free.jsonl", ("a1.jsonl", "a2.jsonl", "a3.jsonl")),
            ("held.jsonl", ("b1.jsonl", "b2.jsonl", "b3.jsonl")),
        ):
            if (self.folder / have).exists():
                for other in others:
                    (self.folder / other).write_bytes((self.folder / have).read_bytes())

    def quick(self, shown: Shown) -> None:
        """Run a command that needs no server; the key that it makes is the page's key."""
        done = run(shown.line, self.folder, {})
        expect(shown, done)
        if " key create " in shown.line:
            self.made["us-..."] = done.stdout.strip()

    def end(self) -> None:
        """End the server that runs, as a user does."""
        if self.server is not None:
            self.server.signal(15)
            self.server.wait_end()
        self._servers.close()
        self.server = self.front_port = None

    def __enter__(self) -> "Followed":
        return self

    def __exit__(self, *error: object) -> None:
        self._servers.close()


@pytest.fixture
def followed(folder: Path) -> Iterator[Followed]:
    with Followed(folder) as page:
        yield page


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", served_pages())
def test_a_page_s_servers_start_and_answer_its_commands(page: str, followed: Followed) -> None:
    for shown in SHOWN:
        if shown.page != page:
            continue
        match kind(shown):
            case Kind.SERVER:
                followed.serve(shown)
            case Kind.ASKS:
                followed.ask(shown)
            case Kind.QUICK:
                followed.quick(shown)
            case _:
                continue
    followed.end()
