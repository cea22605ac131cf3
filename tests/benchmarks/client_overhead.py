"""Cost of the load generator, and the load that one process on one core can drive.

    python -m tests.benchmarks.client_overhead

The program runs on one core; the truth server writes at full speed on another, so the slower one
bounds the rate: usually the server, with a write per token. The lag is of the program's own event
loop.
"""

from typing import Final

from tests.benchmarks.load_tool_runs import LOADGEN, Load
from tests.benchmarks.load_tools import tool_cost

# Tokens of a reply, those that the server puts into one write, at a time, requests.
CASES: Final = ((4, 4, 64, 8_000), (500, 1, 64, 400), (500, 16, 64, 800))
_FEW: Final = 64


def main() -> None:
    for tokens, chunks_per_write, concurrency, requests in CASES:
        found = tool_cost(
            LOADGEN,
            Load(requests=_FEW, tokens=tokens, concurrency=concurrency),
            Load(requests=requests, tokens=tokens, concurrency=concurrency),
            chunks_per_write=chunks_per_write,
        )
        print(
            f"{tokens} tokens a reply, {chunks_per_write} a write, {concurrency} at a time: "
            f"{found.requests_per_s:,.0f} requests/s, {found.requests_per_s * tokens:,.0f} "
            f"tokens/s, CPU {found.us_per_request:.0f} us per request, {found.us_per_token:.2f} us "
            f"per token, lag of the event loop p99 {found.lag_p99_ms or 0:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
