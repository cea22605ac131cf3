"""Wall time of one decode step of up to 144 chips, and its CPU time by process.

A chip's process computes, reads and writes messages, and runs Ray's threads; the hub plans the
exchange and passes messages on. `elsewhere` is the share of tokens' rows that the hub carries to
another chip.
"""

import sys
import time

import numpy as np
import psutil

from emulator.fleet import Fleet
from tests.benchmarks.fleet_load import FleetLoad, small_moe_fleet

CHIPS = (4, 36, 72, 144)
REQUESTS_EACH = (1, 4)
PROMPT_TOKENS, WARM_UP, STEPS = 64, 3, 15


def run(sizes: tuple[int, ...]) -> None:
    print(
        f"{'chips':>5} {'each':>4} {'step ms, median':>15} {'highest':>8} {'hub CPU':>8} "
        f"{'chips CPU':>10} {'of it commands':>15} {'elsewhere':>9}"
    )
    for chips in sizes:
        fleet = small_moe_fleet(chips, kv_blocks=64)
        fleet.start()
        try:
            for each in REQUESTS_EACH:
                _measure(fleet, each)
        finally:
            fleet.stop()


def _measure(fleet: Fleet, each: int) -> None:
    load = FleetLoad(fleet, requests=each * fleet.chips, prompt_tokens=PROMPT_TOKENS)
    load.prefill()
    for _ in range(WARM_UP):
        load.decode()
    hub_s, chips_s, computing_s = time.process_time(), _chips_cpu_s(), fleet.cpu_s()
    walls_ms = np.array([load.decode() for _ in range(STEPS)]) * 1e3
    hub_ms = (time.process_time() - hub_s) / STEPS * 1e3
    computing_ms = (fleet.cpu_s() - computing_s) / STEPS * 1e3
    chips_ms = (_chips_cpu_s() - chips_s) / STEPS * 1e3
    assert load.last.loads is not None
    sent = load.last.loads.sent.sum(axis=0)  # [chips, chips] rows of all layers
    elsewhere = 1 - sent.trace() / sent.sum()
    load.finish()
    print(
        f"{fleet.chips:>5} {each:>4} {np.median(walls_ms):>15.1f} {walls_ms.max():>8.1f} "
        f"{hub_ms:>8.1f} {chips_ms:>10.1f} {computing_ms:>15.1f} {elsewhere:>9.1%}",
        flush=True,
    )


def _chips_cpu_s() -> float:
    total_s = 0.0
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (process.info["name"] or "").startswith("ray::ChipWorker"):
            total_s += process.info["cpu_times"].user + process.info["cpu_times"].system
    return total_s


if __name__ == "__main__":
    run(tuple(map(int, sys.argv[1:])) or CHIPS)
