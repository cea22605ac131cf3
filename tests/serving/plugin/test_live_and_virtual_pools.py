"""An engine that prefills and one that decodes, live, against a plan's pools in virtual time."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.v1.engine import EngineCoreOutput

from emulator.arrays import Float64s
from emulator.specs.partition import Partition
from emulator.units import NS_PER_S
from loadgen.measures.percentile import percentile
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from tests.serving.plugin.core_engine import Engine
from tests.serving.plugin.engine_config import BLOCK_TOKENS
from tests.serving.plugin.exchanging_pair import exchanging_engines, live, pushed_to

MODEL = "qwen3-30b-a3b"
DILATION = 60
LENGTHS = IndependentLengths(prompt=Uniform(least=40, most=400), output=Uniform(least=5, most=40))
BUSY = Traffic.drawn(rate_per_s=7.0, lengths=LENGTHS, seed=5, requests=24)
ONE_BY_ONE = Traffic(
    arrival_s=0.5 * np.arange(5),
    prompt_tokens=BUSY.prompt_tokens[:5],
    output_tokens=BUSY.output_tokens[:5],
)
FEW_BLOCKS = 28
"""Of 16 tokens, vLLM's own one among them: 26 hold the longest prompt of `LENGTHS`, of 400."""
SIMULATED = SimulatedDeployment.of(
    "trn3-nl72x2",
    MODEL,
    Partition(chips=1, tp=1, ep=1, lnc=2),
    schedulers=SchedulerLimits(
        max_num_seqs=6, max_num_batched_tokens=64, block_tokens=BLOCK_TOKENS, max_model_len=512
    ),
)


@dataclass
class Running:
    """An engine that takes its steps in a thread."""

    engine: Engine
    hears: Callable[[EngineCoreOutput, int], None]
    asked: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    came_ns: dict[str, int] = field(default_factory=dict)
    ends: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.time = live(self.engine)._time
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ends.is_set():
            while not self.asked.empty():
                request = self.asked.get()
                self.came_ns[request["name"]] = self.time.now_ns
                self.engine.add(**request)
            if not self.engine.scheduler.has_requests():
                time.sleep(0.0005)
                continue
            for output in self.engine.turn()[2]:
                self.hears(output, self.time.accounted_ns)

    def end(self) -> None:
        self.ends.set()
        self.thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """When requests came to the engine that prefills, and had their tokens, [requests]."""

    came_s: Float64s
    first_s: Float64s
    last_s: Float64s

    @property
    def ttft_s(self) -> Float64s:
        return self.first_s - self.came_s

    def tpot_s(self, traffic: Traffic) -> Float64s:
        spans_s: Float64s = self.last_s - self.first_s
        return spans_s / (traffic.output_tokens - 1)


def lived(traffic: Traffic, prefill: Engine, decode: Engine, *, first: int = 0) -> TokenTimes:
    """Send the traffic to both, as a router does; times are of the first one's clock. Prompts have
    tokens from `first` on.
    """
    tokens_ns: dict[str, list[int]] = {str(number): [] for number in range(len(traffic))}
    over = threading.Event()

    def asked(name: str, **more: Any) -> dict[str, Any]:
        number = int(name)
        tokens = int(traffic.prompt_tokens[number])
        return {"name": name, "tokens": tokens, "first": first + 7 * number} | more

    def send_on(output: EngineCoreOutput, _: int) -> None:
        name, params = output.request_id, output.kv_transfer_params
        tokens = int(traffic.output_tokens[int(name)])
        decodes.asked.put(asked(name, max_tokens=tokens, kv_transfer_params=params))

    def note(output: EngineCoreOutput, now_ns: int) -> None:
        tokens_ns[output.request_id] += [now_ns] * len(output.new_token_ids)
        if sum(map(len, tokens_ns.values())) == traffic.output_tokens.sum():
            over.set()

    decodes, prefills = Running(decode, note), Running(prefill, send_on)
    to_decode = pushed_to(decode)
    begun_s = time.monotonic()
    for name, at_s in zip(tokens_ns, traffic.arrival_s, strict=True):
        time.sleep(max(0.0, begun_s + at_s * DILATION - time.monotonic()))
        prefills.asked.put(asked(name, max_tokens=1, kv_transfer_params=to_decode))
    assert over.wait(120)
    for each in (prefills, decodes):
        each.end()
    apart_ns = prefills.time._clock.now_ns() - decodes.time._clock.now_ns()
    first_ns, last_ns = (np.array([each[at] for each in tokens_ns.values()]) for at in (0, -1))
    return TokenTimes(
        came_s=np.array([prefills.came_ns[name] for name in tokens_ns]) / NS_PER_S,
        first_s=(first_ns + apart_ns) / NS_PER_S,
        last_s=(last_ns + apart_ns) / NS_PER_S,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("traffic", "blocks", "seats"),
    [(ONE_BY_ONE, 1_000, 6), (BUSY, 1_000, 6), (BUSY.first(14), FEW_BLOCKS, 1)],
)
def test_two_engines_take_the_time_of_a_plans_pools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, traffic: Traffic, blocks: int, seats: int
) -> None:
    """With one seat and few blocks, prompts wait for the blocks of those that have no seat yet."""
    shape = {"model": MODEL, "computes": False, "clock": f"dilated:{DILATION}"}
    own = {"max_num_seqs": seats}
    with exchanging_engines(monkeypatch, tmp_path) as make:
        prefill = make("kv_producer", blocks=blocks, **shape)
        decode = make("kv_consumer", blocks=1_000, arguments=own, **shape)
        lived(ONE_BY_ONE.first(1), prefill, decode, first=1_000)  # what the host does once
        live_times = lived(traffic, prefill, decode)
        assert live(decode).telemetry().kv_transfers == 1 + len(traffic)

    came_s = live_times.came_s - live_times.came_s[0]
    limits = SIMULATED.limits
    pools = replace(
        SIMULATED,
        limits=replace(limits, max_num_seqs=seats),
        prefill=replace(SIMULATED, limits=replace(limits, kv_blocks_per_rank=blocks)),
    )
    served = simulate(pools, replace(traffic, arrival_s=came_s)).served
    plan = TokenTimes(came_s=came_s, first_s=served.first_token_s, last_s=served.last_token_s)
    for share in (50.0, 99.0):
        here, there = (percentile(each.tpot_s(traffic), share) for each in (live_times, plan))
        print(f"TPOT p{share:g}: live {here * 1e3:.3f} ms, simulated {there * 1e3:.3f} ms")
        assert here == pytest.approx(there, rel=0.02)
        here, there = (percentile(each.ttft_s, share) for each in (live_times, plan))
        print(f"TTFT p{share:g}: live {here * 1e3:.3f} ms, simulated {there * 1e3:.3f} ms")
        assert here == pytest.approx(there, rel=0.02)
