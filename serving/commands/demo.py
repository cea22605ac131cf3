"""`ultraserve demo`: one compute tray serves a recorded workload; a report; everything stopped.

Server and load generator are processes of their own, as a user would start them.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from emulator.errors import ConfigError
from serving.access.process_listing import API_KEY_VARIABLE
from serving.commands.analysis_options import say
from serving.errors import ServerFailed
from startup.import_path import child_environment

_HOST = "127.0.0.1"
_READY_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 30.0

# A recorded hour of Azure's conversations, used when it lies beside the project.
_RECORDED = Path("shared", "traces", "azure2023", "AzureLLMInferenceTrace_conv.csv")

CLOCK: Final = "dilated:20"
"""Steady, and slow enough to prefill without lag; `auto` had 16 % of lag in its time (2 cores)."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `demo` command."""
    parser = subparsers.add_parser(
        "demo", help="serve a recorded workload on one emulated compute tray and report"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("demo-report.json"),
        metavar="FILE",
        help="the report as JSON (default: %(default)s)",
    )
    parser.add_argument("--model", default="qwen3-30b-a3b", help="default: %(default)s")
    parser.add_argument("--chips", type=int, default=4, help="default: %(default)s, one tray")
    parser.add_argument("--requests", type=int, default=100, help="default: %(default)s")
    parser.add_argument(
        "--speedup",
        type=float,
        default=40.0,
        help="arrivals are this much faster than recorded, in emulated time (default: %(default)s)",
    )
    parser.add_argument(
        "--clock",
        default=CLOCK,
        help="real, auto or dilated:K (default: %(default)s, at which two cores keep up with "
        "bursts of prompts; auto is faster, and late for them)",
    )
    parser.add_argument("--trace", type=Path, help="Azure 2023 CSV (default: recorded, or bundled)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve, load, report, stop; returns the load generator's exit code."""
    _check(args)
    port = _free_port()
    # Asked to end, it ends as Ctrl-C does: with its server stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _server(args, port):
        return _load(args, port)


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for arguments that the load generator would refuse too late."""
    if args.requests < 1:
        raise ConfigError("requests", args.requests, "at least 1")
    if not 0 < args.speedup < float("inf"):
        raise ConfigError("speedup", args.speedup, "a number above 0")
    if args.trace is not None and not args.trace.is_file():
        raise ConfigError("trace", args.trace, "a file that exists")
    if not args.report.resolve().parent.is_dir():
        raise ConfigError("report", args.report, "a file in a folder that exists")


def _load(args: argparse.Namespace, port: int) -> int:
    command = [
        *(sys.executable, "-P", "-m", "loadgen", "run"),
        *("--url", f"http://{_HOST}:{port}"),
        *("--requests", str(args.requests)),
        *("--speedup", str(args.speedup)),
        *("--json", str(args.report)),
    ]
    trace = args.trace or _recorded_trace()
    if trace is not None:
        command += ["--trace", str(trace)]
    return subprocess.run(command, env=child_environment(), check=False).returncode


def _recorded_trace() -> Path | None:
    beside = Path(__file__).resolve().parents[3] / _RECORDED
    return beside if beside.is_file() else None


@contextlib.contextmanager
def _server(args: argparse.Namespace, port: int) -> Iterator[None]:
    """Run `ultraserve serve` in its own session."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        command = [
            *(sys.executable, "-P", "-m", "serving.main", "serve"),
            *("--model", args.model, "--chips", str(args.chips), "--clock", args.clock),
            *("--host", _HOST, "--port", str(port), "--control-port", "0"),
            # Small steps: what a host computes least fast against its emulated time is prefill.
            *("--max-num-batched-tokens", "256", "--max-num-seqs", "32"),
            "--disable-uvicorn-access-log",
        ]
        say(f"Starting {args.chips} emulated chips and vLLM: ultraserve {' '.join(command[4:])}")
        # A key that a user keeps for other servers would keep the demo's own load out.
        environment = child_environment()
        environment.pop(API_KEY_VARIABLE, None)
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait_ready(server, port, log)
            yield
        finally:
            _stop(server)
            say("Stopped the server and its chips.")


def _wait_ready(server: "subprocess.Popen[bytes]", port: int, log: IO[str]) -> None:
    started = time.monotonic()
    next_line_s = 5.0
    while True:
        waited_s = time.monotonic() - started
        if server.poll() is not None:
            raise ServerFailed(f"it ended with exit code {server.returncode}: {_kept_log(log)}")
        if waited_s > _READY_TIMEOUT_S:
            raise ServerFailed(f"it was not ready after {_READY_TIMEOUT_S:g} s: {_kept_log(log)}")
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{_HOST}:{port}/health", timeout=2).close()
            say(f"Ready after {waited_s:.0f} s on port {port}.")
            return
        if waited_s >= next_line_s:
            say(f"  starting, {waited_s:.0f} s")
            next_line_s += 5.0
        time.sleep(0.25)  # polls another process


def _kept_log(log: IO[str]) -> str:
    """Keep the server's log for the user; returns its last line and place."""
    log.seek(0)
    text = log.read()
    with tempfile.NamedTemporaryFile(
        "w", prefix="ultraserve-demo-", suffix=".log", delete=False, encoding="utf-8"
    ) as kept:
        kept.write(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'it wrote nothing'} (its log: {kept.name})"


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """Stop the server, then its whole session."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
