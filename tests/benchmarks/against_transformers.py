"""Decode speed of the chips, channel included, against transformers on the same cores.

Both run the bundled checkpoint in FP32, greedy, from the same prompts, in one run. Of transformers
every experts implementation is tried, eager and compiled, without the `generate` loop, and the
fastest counts.
"""

import os
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoModelForCausalLM, StaticCache

from emulator.data import SMALL_MOE_DIR
from emulator.fleet import Fleet
from tests.benchmarks.fleet_load import FleetLoad, small_moe_fleet

PROMPT_TOKENS = 64
DECODE_TOKENS = 64
BATCHES = (1, 16, 64)
EXPERTS = ("eager", "batched_mm", "grouped_mm")


def run() -> None:
    fleet = small_moe_fleet(4, kv_blocks=2_000)
    fleet.start()
    try:
        ours = {batch: _our_tokens_per_s(fleet, batch) for batch in BATCHES}
    finally:
        fleet.stop()
    print(
        f"{'batch':>5} {'4 chips':>10} {'transformers':>14} {'ratio':>6}  fastest of transformers"
    )
    for batch in BATCHES:
        speeds = _their_tokens_per_s(batch)
        name = max(speeds, key=lambda key: speeds[key])
        ratio = ours[batch] / speeds[name]
        print(f"{batch:>5} {ours[batch]:>10.0f} {speeds[name]:>14.0f} {ratio:>6.2f}  {name}")
        print("      " + ", ".join(f"{key} {value:.0f}" for key, value in speeds.items()))


def _our_tokens_per_s(fleet: Fleet, batch: int) -> float:
    load = FleetLoad(fleet, requests=batch, prompt_tokens=PROMPT_TOKENS)
    load.prefill()
    walls = [load.decode() for _ in range(DECODE_TOKENS)]
    load.finish()
    return batch / float(np.median(walls))


def _their_tokens_per_s(batch: int) -> dict[str, float]:
    torch.set_num_threads(os.cpu_count() or 1)
    speeds: dict[str, float] = {}
    for experts in EXPERTS:
        model = AutoModelForCausalLM.from_pretrained(
            SMALL_MOE_DIR, dtype=torch.float32, experts_implementation=experts
        ).eval()
        speeds[experts] = _decode_tokens_per_s(model, model, batch)
        if experts != "eager":
            compiled = torch.compile(model, dynamic=False)
            speeds[f"{experts} compiled"] = _decode_tokens_per_s(model, compiled, batch)
    return speeds


def _decode_tokens_per_s(model: torch.nn.Module, step: Callable[..., object], batch: int) -> float:
    """Median over decode steps after a prefill, without the first ones, which may compile."""
    ids = torch.randint(300, 1000, (batch, PROMPT_TOKENS), generator=torch.manual_seed(0))
    length = PROMPT_TOKENS + DECODE_TOKENS + 8
    cache = StaticCache(config=model.config, max_cache_len=length)
    with torch.inference_mode():
        positions = torch.arange(PROMPT_TOKENS)
        output = model(ids, past_key_values=cache, cache_position=positions, use_cache=True)
        token = output.logits[:, -1:].argmax(-1)
        walls = []
        for index in range(DECODE_TOKENS):
            started = time.perf_counter()
            position = torch.tensor([PROMPT_TOKENS + index])
            output = step(token, past_key_values=cache, cache_position=position, use_cache=True)
            token = output.logits[:, -1:].argmax(-1)
            walls.append(time.perf_counter() - started)
    return batch / float(np.median(walls[8:]))


if __name__ == "__main__":
    run()
