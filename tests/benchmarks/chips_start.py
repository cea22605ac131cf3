"""Time from starting the chips to their first token, and each chip process's memory.

CPU seconds are of Ray and the chips together: on a busy host they say more than wall time.
"""

import sys
import time

import numpy as np
import psutil

from emulator.fleet import Fleet
from tests.benchmarks.fleet_load import FleetLoad, small_moe_fleet

CHIPS = (4, 36, 72, 144)
KV_BLOCKS = 64
REQUESTS_EACH = 4


def run(sizes: tuple[int, ...]) -> None:
    print(
        f"{'chips':>5} {'ready s':>8} {'CPU s':>6} {'first token s':>13} "
        f"{'PSS MB each: ready':>18} {'after load':>10} {'highest':>8} {'RSS':>5}"
    )
    for chips in sizes:
        fleet = small_moe_fleet(chips, kv_blocks=KV_BLOCKS)
        started = time.perf_counter()
        fleet.start()
        try:
            _measure(fleet, started)
        finally:
            fleet.stop()


def _measure(fleet: Fleet, started: float) -> None:
    ready_s = time.perf_counter() - started
    cpu_s = _descendants_cpu_s()
    load = FleetLoad(fleet, requests=fleet.chips, prompt_tokens=64)
    load.prefill()
    first_token_s = time.perf_counter() - started
    load.finish()
    at_rest = fleet.conditions()
    _fill(fleet)
    loaded = fleet.conditions()
    pss = [np.array([size.pss_bytes for size in sizes]) / 1e6 for sizes in (at_rest, loaded)]
    rss_mb = max(size.rss_bytes for size in loaded) / 1e6
    print(
        f"{fleet.chips:>5} {ready_s:>8.1f} {cpu_s:>6.1f} {first_token_s:>13.1f} "
        f"{pss[0].mean():>18.1f} {pss[1].mean():>10.1f} {pss[1].max():>8.1f} {rss_mb:>5.0f}",
        flush=True,
    )


def _fill(fleet: Fleet) -> None:
    load = FleetLoad(
        fleet, requests=REQUESTS_EACH * fleet.chips, prompt_tokens=440, generated_max=32
    )
    load.prefill()
    for _ in range(8):
        load.decode()
    load.finish()


def _descendants_cpu_s() -> float:
    """CPU seconds of this process's descendants, ended ones included."""
    total_s = 0.0
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


if __name__ == "__main__":
    run(tuple(map(int, sys.argv[1:])) or CHIPS)
