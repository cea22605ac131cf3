"""Cost of a scrape of 144 chips: a live engine with synthetic tokens.

Printed: page size and series, wall time, and the added CPU time of the API's process and the
engine's. Targets: 200 ms of wall time, and 50 ms of CPU in all: 1 % of a core at a scrape per 5 s.
"""

import statistics
import time
import urllib.request

import psutil

from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

SCRAPES = 40
EVERY_S = 0.5
ARGUMENTS = (
    *("--model", "deepseek-v3", "--weights", "none", "--chips", "144", "--clock", "dilated:10"),
    *("--max-model-len", "4096", "--disable-uvicorn-access-log"),
)


def cpu_s(processes: list[psutil.Process]) -> float:
    each = [process.cpu_times() for process in processes]
    return sum(times.user + times.system for times in each)


def scrape(server: ServerProcess) -> tuple[float, bytes]:
    began_s = time.perf_counter()
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        page = answer.read()
    return time.perf_counter() - began_s, page


def main() -> None:
    with started(ULTRASERVE, *ARGUMENTS) as server:
        server.wait_ready()
        root = psutil.Process(server.pid)
        named = {
            "API": [root],
            "engine": [c for c in root.children(recursive=True) if "EngineCore" in c.name()],
        }
        scrape(server)
        before = {name: cpu_s(processes) for name, processes in named.items()}
        time.sleep(SCRAPES * EVERY_S / 2)
        rest = {name: cpu_s(p) - before[name] for name, p in named.items()}
        before = {name: cpu_s(processes) for name, processes in named.items()}
        walls_s, page, began_s = [], b"", time.monotonic()
        for _ in range(SCRAPES):
            wall_s, page = scrape(server)
            walls_s.append(wall_s)
            time.sleep(max(0.0, EVERY_S - wall_s))
        took_s = time.monotonic() - began_s
        print(f"page: {len(page):,} bytes, {_series(page):,} series")
        print(
            f"wall: median {1e3 * statistics.median(walls_s):.0f} ms, "
            f"longest {1e3 * max(walls_s):.0f} ms"
        )
        for name, processes in named.items():
            idle_s = rest[name] / (SCRAPES * EVERY_S / 2) * took_s
            spent_s = cpu_s(processes) - before[name] - idle_s
            print(f"CPU of the {name}'s process: {1e3 * spent_s / SCRAPES:.1f} ms per scrape")


def _series(page: bytes) -> int:
    return sum(not line.startswith(b"#") for line in page.splitlines() if line)


if __name__ == "__main__":
    main()
