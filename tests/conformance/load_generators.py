"""Three load generators with the same small load, against each other and the server's figures.

Their times are wall seconds; the server's are emulated. `wall` figures are divided by the dilation
for comparison. Definitions and client overhead differ, so closeness is not asserted; that every
request succeeds and tokens add up is.
"""

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.conformance_server import DILATION, MODEL, ConformanceServer
from tests.conformance.outcome import Outcome
from tests.conformance.pinned_environment import pinned_version, python_of
from tests.conformance.suites import Ran, run_client

REQUESTS = 48
CONCURRENCY = 8
PROMPT_TOKENS = 128
OUTPUT_TOKENS = 32


def vllm_bench(server: ConformanceServer) -> Outcome:
    """`vllm bench serve` of our own environment."""
    return vllm_bench_at(
        server, url=server.url, environment=server.environment(), client="vllm_bench"
    )


def vllm_bench_at(
    server: ConformanceServer, *, url: str, environment: Mapping[str, str], client: str
) -> Outcome:
    """The same at another address, such as a gateway's."""
    folder = _folder(server, "vllm_bench")
    command = (
        *(str(Path(sys.executable).with_name("vllm")), "bench", "serve", "--backend", "openai"),
        *("--base-url", url, "--model", environment["SERVED_MODEL"]),
        *("--tokenizer", str(server.tokenizer)),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(REQUESTS)),
        *("--max-concurrency", str(CONCURRENCY), "--ignore-eos", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "result.json"),
    )
    with _Window(server) as window:
        ran = run_client(command, environment, folder)
    found = json.loads((folder / "result.json").read_text())
    return _outcome(
        client,
        version("vllm"),
        completed=found["completed"],
        output_tokens=found["total_output_tokens"],
        wall_ms={"ttft": found["mean_ttft_ms"], "tpot": found["mean_tpot_ms"]},
        output_tokens_per_wall_s=found["output_throughput"],
        ran=ran,
        window=window,
    )


def aiperf(server: ConformanceServer) -> Outcome:
    folder = _folder(server, "aiperf")
    command = (
        *(str(python_of("aiperf").with_name("aiperf")), "profile", "--model", MODEL),
        *("--url", server.url, "--endpoint-type", "completions", "--streaming"),
        *("--tokenizer", str(server.tokenizer), "--isl", str(PROMPT_TOKENS)),
        *("--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--request-count", str(REQUESTS), "--concurrency", str(CONCURRENCY)),
        *("--use-server-token-count", "--api-key", server.key, "--ui", "none"),
        *("--output-artifact-dir", str(folder)),
    )
    with _Window(server) as window:
        # Told to stay off the hub, aiperf looks for a folder's tokenizer there all the same.
        ran = run_client(command, server.environment() | {"HF_HUB_OFFLINE": ""}, folder)
    (path,) = folder.rglob("profile_export_aiperf.json")
    found = json.loads(path.read_text())
    return _outcome(
        "aiperf",
        pinned_version("aiperf", "aiperf"),
        completed=int(found["request_count"]["avg"]),
        output_tokens=round(found["output_sequence_length"]["avg"] * found["request_count"]["avg"]),
        wall_ms={
            "ttft": found["time_to_first_token"]["avg"],
            "tpot": found["inter_token_latency"]["avg"],
        },
        output_tokens_per_wall_s=found["output_token_throughput"]["avg"],
        ran=ran,
        window=window,
    )


def guidellm(server: ConformanceServer) -> Outcome:
    folder = _folder(server, "guidellm")
    report = folder / "report.json"
    backend = {
        "kind": "openai_http",
        "target": server.url,
        "model": MODEL,
        "request_format": "/v1/completions",
        "api_key": server.key,
        "extras": {"body": {"ignore_eos": True, "temperature": 0.0}},
    }
    data = {
        "kind": "synthetic_text",
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
    }
    command = (
        *(str(python_of("guidellm").with_name("guidellm")), "run"),
        *("--backend", json.dumps(backend), "--data", json.dumps(data)),
        *("--profile", json.dumps({"kind": "concurrent", "streams": CONCURRENCY})),
        *("--constraint", json.dumps({"kind": "max_requests", "count": REQUESTS})),
        *("--tokenizer", json.dumps({"kind": "hf_auto", "model": str(server.tokenizer)})),
        *("--output", json.dumps({"kind": "json", "path": str(report)})),
        "--disable-console-interactive",
    )
    with _Window(server) as window:
        ran = run_client(command, server.environment(), folder)
    (found,) = json.loads(report.read_text())["benchmarks"]
    metrics = found["metrics"]
    return _outcome(
        "guidellm",
        pinned_version("guidellm", "guidellm"),
        completed=metrics["request_totals"]["successful"],
        output_tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
        wall_ms={
            "ttft": metrics["time_to_first_token_ms"]["successful"]["mean"],
            "tpot": metrics["inter_token_latency_ms"]["successful"]["mean"],
        },
        output_tokens_per_wall_s=metrics["output_tokens_per_second"]["successful"]["mean"],
        ran=ran,
        window=window,
    )


class _Window:
    """Growth of the server's own counters while entered."""

    def __init__(self, server: ConformanceServer) -> None:
        self._server = server

    def __enter__(self) -> "_Window":
        self._before = self._read()
        return self

    def __exit__(self, *error: object) -> None:
        self._after = self._read()

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self._server.metrics().text):
            for each in family.samples:
                found[each.name] = found.get(each.name, 0.0) + each.value
        return found

    def growth(self, name: str) -> float:
        return self._after[name] - self._before.get(name, 0.0)

    def mean(self, histogram: str) -> float:
        return self.growth(f"{histogram}_sum") / max(1.0, self.growth(f"{histogram}_count"))


def _folder(server: ConformanceServer, name: str) -> Path:
    folder = server.folder / name
    folder.mkdir()
    return folder


def _outcome(
    client: str,
    found_version: str,
    *,
    completed: int,
    output_tokens: int,
    wall_ms: dict[str, float],
    output_tokens_per_wall_s: float,
    ran: Ran,
    window: _Window,
) -> Outcome:
    failures = []
    if completed != REQUESTS:
        failures.append(f"{completed} of {REQUESTS} requests succeeded")
    if output_tokens != REQUESTS * OUTPUT_TOKENS:
        expected = REQUESTS * OUTPUT_TOKENS
        failures.append(f"it counted {output_tokens} output tokens of {expected}")
    figures: dict[str, Any] = {f"{name} emulated ms": ms / DILATION for name, ms in wall_ms.items()}
    figures |= {
        "output tokens per emulated s": output_tokens_per_wall_s * DILATION,
        "server's ttft emulated ms": 1e3 * window.mean("vllm:time_to_first_token_seconds"),
        "server's tpot emulated ms": 1e3
        * window.mean("vllm:request_time_per_output_token_seconds"),
        "server's lag emulated s": window.growth("ultraserve_lag_seconds_total"),
    }
    return Outcome(
        client=client,
        version=found_version,
        cases=REQUESTS,
        failures=tuple(failures),
        seconds=ran.seconds,
        figures=figures,
    ).ended(ran.exit_code)
