"""From starting the chips to their first token, and the memory of each chip's process."""

import time

from emulator.data import SMALL_MOE_DIR
from emulator.fleet import Fleet
from tests.benchmarks.fleet_load import FleetLoad

CHIPS = 4


def run() -> None:
    """Print seconds to ready and to the first token, and MB per chip, at rest and after load."""
    fleet = Fleet(weights_dir=SMALL_MOE_DIR, chips=CHIPS, kv_blocks=2_000, block_tokens=32)
    started = time.perf_counter()
    fleet.start()
    ready_s = time.perf_counter() - started
    try:
        load = FleetLoad(fleet, requests=CHIPS, prompt_tokens=64)
        load.prefill()
        first_token_s = time.perf_counter() - started
        at_rest = fleet.memory()
        load.finish()
        _fill(fleet)
        loaded = fleet.memory()
    finally:
        fleet.stop()
    print(f"{CHIPS} chips ready in {ready_s:.1f} s, first token after {first_token_s:.1f} s")
    for name, sizes in (("at rest", at_rest), ("after 64 requests of 576 tokens", loaded)):
        pss = ", ".join(f"{size.pss_bytes / 1e6:.0f}" for size in sizes)
        rss = ", ".join(f"{size.rss_bytes / 1e6:.0f}" for size in sizes)
        print(f"  {name}: PSS {pss} MB; RSS {rss} MB")


def _fill(fleet: Fleet) -> None:
    load = FleetLoad(fleet, requests=64, prompt_tokens=512)
    load.prefill()
    for _ in range(64):
        load.decode()
    load.finish()


if __name__ == "__main__":
    run()
