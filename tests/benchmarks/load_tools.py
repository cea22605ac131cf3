"""Three load generators against one server whose delays are known: figures that assert nothing.

    python -m tests.benchmarks.load_tools [--tools ultraserve-loadgen aiperf] [--repeats 3]

Each runs on one core, against the truth server on another. Agreement: a tool's percentiles, TTFT
from the send, less those of the server for the same requests, in ms. Cost: CPU of all its processes
per request and streamed token, without start-up (two lengths of run), with a server that writes at
full speed. The first run builds aiperf's environment.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from tests.benchmarks.load_tool_runs import (
    PERCENTILES,
    TOOLS,
    Cost,
    Load,
    LoadTool,
    Measured,
    cost,
    run_tool,
)
from tests.loadgen.truth_process import cores, truth_of, truth_process

DELAYS: Final = ("--ttft", "20ms-80ms", "--itl", "2ms-8ms")
# 16 streams of a token in 5 ms are 3,200 tokens/s, little for any tool; 128 are 25,600.
AGREEMENT_LOADS: Final = (
    Load(requests=400, tokens=32, concurrency=16),
    Load(requests=1_024, tokens=64, concurrency=128),
)
COST_LOADS: Final = (
    (
        Load(requests=64, tokens=500, concurrency=32),
        Load(requests=1_024, tokens=500, concurrency=32),
    ),
    (Load(requests=500, tokens=4, concurrency=32), Load(requests=8_000, tokens=4, concurrency=32)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A tool's report less the truth, ms, by percentile, and its processes' cost."""

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    cpu_s: float
    wall_s: float
    lag_p99_ms: float | None


def agreement(tool: LoadTool, load: Load) -> Agreement:
    """Run once, and compare with the last requests that the server served."""
    client_core, server_core = cores()
    with truth_process(*DELAYS, core=server_core) as server:
        found = run_tool(tool, load, server.url, core=client_core)
    _check(tool, load, found)
    truth = truth_of(server.served[-load.requests :])
    return Agreement(
        ttft_ms=tuple(
            found.ttft_ms[each] - float(np.percentile(truth.ttft_ms, each)) for each in PERCENTILES
        ),
        tpot_ms=tuple(
            found.tpot_ms[each] - float(np.percentile(truth.tpot_ms, each)) for each in PERCENTILES
        ),
        cpu_s=found.cpu_s,
        wall_s=found.wall_s,
        lag_p99_ms=found.lag_p99_ms,
    )


def tool_cost(tool: LoadTool, few: Load, many: Load, *, chunks_per_write: int = 1) -> Cost:
    client_core, server_core = cores()
    found = []
    for load in (few, many):
        with truth_process("--chunks-per-write", str(chunks_per_write), core=server_core) as server:
            found.append(run_tool(tool, load, server.url, core=client_core))
        _check(tool, load, found[-1])
    return cost(*found)


def _check(tool: LoadTool, load: Load, found: Measured) -> None:
    """Refuse figures of a run that did something else."""
    wanted = (load.requests, load.requests * load.tokens)
    if (found.completed, found.output_tokens) != wanted:
        raise SystemExit(
            f"{tool.name}: {found.completed} requests, {found.output_tokens} tokens, not {wanted}"
        )


def _agreement_lines(tools: Sequence[LoadTool], repeats: int) -> Iterator[str]:
    names = "".join(f"{f'{name} p{each}':>12}" for name in ("TTFT", "TPOT") for each in PERCENTILES)
    for load in AGREEMENT_LOADS:
        yield (
            f"\nReported less true, ms: {load.requests} requests of {load.tokens} tokens, "
            f"{load.concurrency} at a time, TTFT 20-80 ms, 2-8 ms a token; median of {repeats}"
        )
        yield f"{'':20}{names}{'CPU s':>9}{'wall s':>9}{'own lag p99':>13}"
        for tool in tools:
            found = [agreement(tool, load) for _ in range(repeats)]
            columns = zip(*((*each.ttft_ms, *each.tpot_ms) for each in found), strict=True)
            errors = "".join(f"{median(column):>+12.3f}" for column in columns)
            cpu_s, wall_s = median(e.cpu_s for e in found), median(e.wall_s for e in found)
            lags = [each.lag_p99_ms for each in found if each.lag_p99_ms is not None]
            lag = f"{median(lags):>13.3f}" if lags else f"{'not told':>13}"
            yield f"{tool.name:20}{errors}{cpu_s:>9.1f}{wall_s:>9.1f}{lag}"


def _cost_lines(tools: Sequence[LoadTool], repeats: int) -> Iterator[str]:
    for few, many in COST_LOADS:
        yield (
            f"\nCost: replies of {many.tokens} tokens, a write each, {many.concurrency} at a time "
            f"({many.requests} requests less {few.requests}); median of {repeats}"
        )
        yield (
            f"{'':20}{'CPU us/token':>14}{'us/request':>12}{'times the first':>17}"
            f"{'requests/s':>12}{'tokens/s':>12}{'start CPU s':>13}"
        )
        first = None
        for tool in tools:
            found = [tool_cost(tool, few, many) for _ in range(repeats)]
            us_per_token = median(each.us_per_token for each in found)
            first = first or us_per_token
            rate = median(each.requests_per_s for each in found)
            yield (
                f"{tool.name:20}{us_per_token:>14.1f}{us_per_token * many.tokens:>12.0f}"
                f"{us_per_token / first:>17.1f}{rate:>12,.0f}{rate * many.tokens:>12,.0f}"
                f"{median(each.start_cpu_s for each in found):>13.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [tool.name for tool in TOOLS]
    parser.add_argument("--tools", nargs="+", choices=names, default=names)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    tools = [tool for tool in TOOLS if tool.name in given.tools]
    for lines in (_agreement_lines, _cost_lines):
        for line in lines(tools, given.repeats):
            print(line, flush=True)


if __name__ == "__main__":
    main()
