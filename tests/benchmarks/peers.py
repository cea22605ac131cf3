"""The simulator beside NVIDIA Dynamo's replay (ai-dynamo, in Rust), on the same traffic in one run.

    python -m tests.benchmarks.peers [--repeats N]

Two questions: 50,000 requests of 512 and 512 tokens on 144 engines or ranks, and Mooncake's
conversation trace with its prefixes on 8 replicas (the trace in ../shared/traces, or where
ULTRASERVE_TRACES says). Each is a process of its own; wall seconds and memory are the whole
process's, start and imports included, `in it` what the tool itself says that its run took. A tool's
steps last as its own model says, so the TPOT of both is shown: Dynamo's is a polynomial of no
machine in particular. The first run builds Dynamo's environment.

Hit rates beside vLLM's own schedulers are `tests.benchmarks.prefix_hits`.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.pinned_environment import python_of

MODEL: Final = "qwen3-30b-a3b"
REPLICAS, CHIPS = 8, 4
RANKS, RATE_PER_S, REQUESTS, TOKENS = 144, 1_440, 50_000, 512
SEATS: Final = 256
CONTEXT_TOKENS: Final = 40_960
SHARED: Final = Path(__file__).resolve().parents[3] / "shared" / "traces"
TRACE: Final = "mooncake/conversation_trace.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A process: wall seconds, its most memory, and its report."""

    wall_s: float
    memory_mb: float
    report: dict[str, Any]


def measured(command: Sequence[str], report: Path | None = None) -> Measured:
    """Run a command whose report is its output, or that file."""
    begun_s = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begun_s
    assert process.returncode == 0, f"{command}: exit code {process.returncode}"
    return Measured(
        wall_s=wall_s,
        memory_mb=usage.ru_maxrss / 1e3,
        report=json.loads(said if report is None else report.read_text()),
    )


def ours(*arguments: str) -> Measured:
    """`ultraserve simulate`."""
    command = (sys.executable, "-m", "serving.main", "simulate", "--model", MODEL, "--json")
    return measured((*command, *arguments, "--max-num-seqs", str(SEATS)))


def dynamo(folder: Path, *arguments: str, block_tokens: int) -> Measured:
    """`dynamo.replay`."""
    engine = {"block_size": block_tokens, "max_num_seqs": SEATS}
    report = folder / "report.json"
    command = (
        *(str(python_of("dynamo")), "-m", "dynamo.replay", *arguments),
        *("--replay-mode", "offline", "--extra-engine-args", json.dumps(engine)),
        *("--report-json", str(report)),
    )
    return measured(command, report)


def line(name: str, found: Measured, in_it_s: float, tpot_ms: float, hit_share: float) -> None:
    """Print a tool's figures."""
    print(
        f"{name:<34} {found.wall_s:>7.2f} s  {in_it_s:>7.2f} s in it  {found.memory_mb:>6.0f} MB  "
        f"TPOT {tpot_ms:>6.2f} ms  {hit_share:>6.1%} of prompt tokens cached",
        flush=True,
    )


def line_of_ours(name: str, found: Measured) -> None:
    """Print `ultraserve simulate`'s figures."""
    report = found.report
    share = report["hit_tokens"] / report["prompt_tokens"]
    line(f"ultraserve, {name}", found, report["wall_s"], report["tpot_ms"]["p50"], share)


def line_of_dynamo(name: str, found: Measured) -> None:
    """Print Dynamo's figures."""
    report = found.report
    share = report["prefix_cache_reused_ratio"]
    line(f"dynamo, {name}", found, report["wall_time_ms"] / 1e3, report["median_tpot_ms"], share)


def equal_requests(folder: Path) -> None:
    """50,000 requests of 512 and 512 tokens."""
    print(f"{REQUESTS:,} x {TOKENS}/{TOKENS} tokens at {RATE_PER_S:,}/s, {RANKS} ranks or engines")
    lengths = ("--input", str(TOKENS), "--output", str(TOKENS), "--arrivals", "constant")
    traffic = ("--requests", str(REQUESTS), "--rate", str(RATE_PER_S), *lengths)
    found = ours("--chips", str(RANKS), *traffic)
    line_of_ours("one engine", found)
    theirs = dynamo(
        folder,
        *("--input-tokens", str(TOKENS), "--output-tokens", str(TOKENS)),
        *("--request-count", str(REQUESTS), "--arrival-interval-ms", str(1e3 / RATE_PER_S)),
        *("--num-workers", str(RANKS), "--router-mode", "round_robin"),
        block_tokens=16,
    )
    line_of_dynamo("144 engines", theirs)
    _ratio(found, theirs)


def recorded_prefixes(folder: Path, trace: Path) -> None:
    """Mooncake's trace, without what is longer than the model's context."""
    within = folder / "trace.jsonl"
    rows = [json.loads(row) for row in trace.read_text().splitlines()]
    rows = [row for row in rows if row["input_length"] + row["output_length"] <= CONTEXT_TOKENS]
    within.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows):,} requests of {trace.name} on {REPLICAS} replicas of {CHIPS} chips")
    pairs = (("round-robin", "round_robin"), ("prefix-aware", "kv_router"))
    for our_router, their_router in pairs:
        machine = ("--chips", str(CHIPS), "--replicas", str(REPLICAS))
        found = ours(*machine, "--router", our_router, "--trace", str(within))
        line_of_ours(our_router, found)
        theirs = dynamo(
            folder,
            *(str(within), "--num-workers", str(REPLICAS), "--router-mode", their_router),
            block_tokens=512,
        )
        line_of_dynamo(their_router, theirs)
        _ratio(found, theirs)


def _ratio(found: Measured, theirs: Measured) -> None:
    in_it = theirs.report["wall_time_ms"] / 1e3 / found.report["wall_s"]
    print(f"ratio: {theirs.wall_s / found.wall_s:.2f} of the processes, {in_it:.2f} in them\n")


def trace_path() -> Path:
    """Of Mooncake's trace, which may not be there."""
    return Path(os.environ.get("ULTRASERVE_TRACES", SHARED)) / TRACE


def run(arguments: Sequence[str] | None = None) -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    trace = trace_path()
    python_of("dynamo")
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        for _ in range(args.repeats):
            equal_requests(folder)
            if trace.exists():
                recorded_prefixes(folder, trace)
    if not trace.exists():
        print(f"{trace} is not there: nothing is said of prefixes")


if __name__ == "__main__":
    run()
