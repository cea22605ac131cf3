"""What the load generator costs and how much it can take: figures, no assertion about time.

    python -m tests.benchmarks.client_overhead

A trivial server on another core streams as fast as it can; client, attack, results and measures
are those of a run. CPU per token is the client process's own; the rate is bound by the slower of
the two processes, with small writes usually the server.
"""

import asyncio
import subprocess
import sys
import time

import numpy as np

from loadgen.attack import Attack, AttackLimits
from loadgen.clients.openai_http import CompletionOptions, OpenAIHttpClient, new_session
from loadgen.measure import measure
from loadgen.pacer import ClosedLoop
from loadgen.progress import LiveCounts
from loadgen.prompt_pool import PromptPool
from loadgen.result import Result
from loadgen.server_clock import ServerReading, ServerWindow
from loadgen.trace import TraceRow
from loadgen.workload import make_workload

CASES = (  # tokens of a reply, chunks that the server puts into one write, concurrency, requests
    (500, 1, 64, 400),
    (500, 16, 64, 1_200),
    (4, 4, 64, 6_000),
)


async def attack(url: str, *, tokens: int, concurrency: int, requests: int) -> list[Result]:
    rows = (TraceRow(arrival_ns=0, input_tokens=16, output_tokens=tokens),) * requests
    pool = PromptPool(tokens=np.arange(2 * requests, dtype=np.int64))
    results: list[Result] = []
    counts = LiveCounts(total=requests, total_tokens=requests * tokens)
    async with new_session() as session:
        client = OpenAIHttpClient(
            session,
            url=url,
            options=CompletionOptions(
                model="trivial", timeout_s=60, ignore_eos=True, temperature=0.0
            ),
            on_chunks=counts.add_chunks,
        )
        await Attack(
            workload=make_workload(rows, pool, warmups=0, seed=0),
            pacer=ClosedLoop(concurrency=concurrency),
            client=client,
            limits=AttackLimits(wall_per_pace=1.0, max_in_flight=concurrency),
            dilation=1.0,
            sink=results.append,
        ).run()
    return results


def main() -> None:
    for tokens, chunks_per_write, concurrency, requests in CASES:
        module = "tests.loadgen.trivial_server"
        server = subprocess.Popen(
            [sys.executable, "-m", module, str(tokens), str(chunks_per_write)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            cpu_s = time.process_time()
            results = asyncio.run(
                attack(url, tokens=tokens, concurrency=concurrency, requests=requests)
            )
            cpu_s = time.process_time() - cpu_s
        finally:
            server.terminate()
            server.wait()
        figures = measure(results, ServerWindow(start=ServerReading(), end=ServerReading()))
        print(
            f"{tokens} tokens a reply, {chunks_per_write} a write, {concurrency} in flight: "
            f"{figures.output_tokens_per_s or 0:,.0f} tokens/s, "
            f"{figures.requests_per_s or 0:,.0f} requests/s, "
            f"client CPU {1e6 * cpu_s / figures.output_tokens:.2f} us per token, "
            f"{1e6 * cpu_s / figures.requests:.0f} us per request; "
            f"failed {figures.failed_requests}"
        )


if __name__ == "__main__":
    main()
