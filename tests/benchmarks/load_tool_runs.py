"""Runs a load generator as a program on one core, and reads its report.

Each sends the same number of requests of the same lengths and concurrency, with the API's streaming
and the server's token counts; everything else is default.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.pinned_environment import python_of
from tests.loadgen.truth_process import on_core
from tests.loadgen.truth_server import MODEL

ROOT: Final = Path(__file__).parents[2]
TOKENIZER: Final = ROOT / "emulator" / "data" / "small_moe"
PERCENTILES: Final = (50, 90, 99)
PROMPT_TOKENS: Final = 16
_SECONDS_MAX: Final = 600.0
_SAID_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`requests` of `tokens` output tokens each, `concurrency` at a time."""

    requests: int
    tokens: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A tool's report, and the cost of its processes.

    `ttft_ms` and `tpot_ms` by percentile, TTFT from the send; CPU and wall seconds of the whole
    program, start-up included. `lag_p99_ms` is the tool's own figure of its event loop.
    """

    completed: int
    output_tokens: int
    requests_per_s: float
    ttft_ms: Mapping[int, float]
    tpot_ms: Mapping[int, float]
    cpu_s: float
    wall_s: float
    lag_p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTool:
    """A load generator: its command, and the reader of its report."""

    name: str
    command: Callable[[Load, str, Path], list[str]]
    read: Callable[[Path], dict[str, Any]]


def run_tool(tool: LoadTool, load: Load, url: str, *, core: int) -> Measured:
    """Run `tool` against `url`; SystemExit with its last output if it failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [*on_core(core), *tool.command(load, url, folder)]
        said = folder / "said.txt"
        environment = os.environ | {"NO_PROXY": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        began_s = time.monotonic()
        with said.open("w") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            cpu_s = _ended(process)
        wall_s = time.monotonic() - began_s
        if process.returncode:
            raise SystemExit(f"{tool.name} failed: {said.read_text()[-_SAID_CHARACTERS:]}")
        return Measured(cpu_s=cpu_s, wall_s=wall_s, **tool.read(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of more load without start-up: the difference of two runs of one tool.

    `requests_per_s` is the tool's figure for the larger one.
    """

    us_per_request: float
    us_per_token: float
    start_cpu_s: float
    requests_per_s: float
    lag_p99_ms: float | None


def cost(few: Measured, many: Measured) -> Cost:
    """CPU per request and token that `many` had beyond `few`, the same load but shorter."""
    more_cpu_s = many.cpu_s - few.cpu_s
    us_per_request = 1e6 * more_cpu_s / (many.completed - few.completed)
    return Cost(
        us_per_request=us_per_request,
        us_per_token=1e6 * more_cpu_s / (many.output_tokens - few.output_tokens),
        start_cpu_s=few.cpu_s - us_per_request / 1e6 * few.completed,
        requests_per_s=many.requests_per_s,
        lag_p99_ms=many.lag_p99_ms,
    )


def _ended(process: subprocess.Popen[bytes]) -> float:
    """Wait; returns the CPU seconds of the process and all those it waited for."""
    deadline_s = time.monotonic() + _SECONDS_MAX
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline_s:
            process.terminate()
            deadline_s = float("inf")
        time.sleep(0.02)


def _loadgen_command(load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "loadgen", "run", "--url", url),
        *("--input", str(PROMPT_TOKENS), "--output", str(load.tokens)),
        *("--requests", str(load.requests), "--concurrency", str(load.concurrency)),
        *("--quiet", "--json", str(folder / "report.json")),
    ]


def _read_loadgen(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "report.json").read_text())
    return {
        "completed": found["completed_requests"],
        "output_tokens": found["output_tokens"],
        "requests_per_s": found["requests_per_s"],
        "ttft_ms": {each: found["ttft_from_send_ms"][f"p{each}"] for each in PERCENTILES},
        "tpot_ms": {each: found["tpot_ms"][f"p{each}"] for each in PERCENTILES},
        "lag_p99_ms": found["client"]["loop_lag_p99_wall_ms"],
    }


def _vllm_command(load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(str(Path(sys.executable).with_name("vllm")), "bench", "serve", "--backend", "openai"),
        *("--base-url", url, "--model", MODEL, "--tokenizer", str(TOKENIZER)),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(load.tokens), "--num-prompts", str(load.requests)),
        *("--max-concurrency", str(load.concurrency), "--ignore-eos", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot"),
        *("--metric-percentiles", ",".join(map(str, PERCENTILES))),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "result.json"),
    ]


def _read_vllm(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "result.json").read_text())
    return {
        "completed": found["completed"],
        "output_tokens": found["total_output_tokens"],
        "requests_per_s": found["request_throughput"],
        "ttft_ms": {each: found[f"p{each}_ttft_ms"] for each in PERCENTILES},
        "tpot_ms": {each: found[f"p{each}_tpot_ms"] for each in PERCENTILES},
    }


def _aiperf_command(load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(str(python_of("aiperf").with_name("aiperf")), "profile", "--model", MODEL),
        *("--url", url, "--endpoint-type", "completions", "--streaming"),
        *("--tokenizer", str(TOKENIZER), "--isl", str(PROMPT_TOKENS)),
        *("--osl", str(load.tokens), "--extra-inputs", "ignore_eos:true"),
        *("--request-count", str(load.requests), "--concurrency", str(load.concurrency)),
        *("--use-server-token-count", "--ui", "none", "--output-artifact-dir", str(folder)),
    ]


def _read_aiperf(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("profile_export_aiperf.json")
    found = json.loads(path.read_text())
    completed = round(found["request_count"]["avg"])
    # aiperf's "inter-token latency" is a request's (E2E - TTFT) / (n - 1): others' TPOT.
    tpot = found.get("inter_token_latency", {})
    return {
        "completed": completed,
        "output_tokens": round(found["output_sequence_length"]["avg"] * completed),
        "requests_per_s": found["request_throughput"]["avg"],
        "ttft_ms": {each: found["time_to_first_token"][f"p{each}"] for each in PERCENTILES},
        "tpot_ms": {each: tpot[f"p{each}"] for each in PERCENTILES} if tpot else {},
    }


LOADGEN: Final = LoadTool(name="ultraserve-loadgen", command=_loadgen_command, read=_read_loadgen)
VLLM: Final = LoadTool(name="vllm bench serve", command=_vllm_command, read=_read_vllm)
AIPERF: Final = LoadTool(name="aiperf", command=_aiperf_command, read=_read_aiperf)
TOOLS: Final = (LOADGEN, VLLM, AIPERF)
