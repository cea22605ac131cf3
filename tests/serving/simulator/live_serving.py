"""A live engine below the API process: what vLLM's EngineCore does, in its order, without waiting.

The config is that of a server with the same flags, and tokens are synthetic, so that no chip runs;
with `computes` they are those of chips in this process.
The clock is dilated, by a wall that a test moves: its steps are held as a server's are.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from emulator.arrays import Float64s, Int64s
from emulator.sim.clock import DilatedClock
from emulator.specs.batch import StepBatch
from emulator.ultraserver.machine import RecoveryPlan
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from loadgen.workloads.traffic import Traffic
from serving.engine.live_engine import LiveEngine
from serving.engine.scheduler_state import RankQueues
from serving.plugin import executor as executor_module
from serving.plugin.executor import UltraServeExecutor
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.settings import Settings
from serving.simulator import TimedCall
from serving.simulator.machine_calls import MachineCall
from serving.wire.control_call import METHOD, Refusal, TelemetryRequest, reply_from_json, to_json
from tests.serving.plugin.engine_config import block_hasher, config_from_flags
from tests.serving.plugin.live_parts import started_tokens

DILATION = 1_000
"""A step of a millisecond is held for four turns of the loop."""

REST_S = 0.02
"""Of the wall, between two turns."""

PLAN_WALL_NS = 5_000_000
"""Of the wall, that the host takes to plan a recovery."""

_PROMPT_TOKEN = 8  # and the number of the request: no two prompts share a block


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """One step: its begin, its rows in order of rank and context, what it took."""

    begin_ns: int
    rows: list[list[int]]  # rank, new tokens, context tokens
    logit_rows: list[int]  # [ranks]
    duration_ns: int
    joules: float

    @classmethod
    def of(cls, cost: StepCost, batch: StepBatch, *, begin_ns: int) -> "SeenStep":
        """Rows of a rank have no order that the cost model knows."""
        rows = np.array([batch.rank, batch.new_tokens, batch.context_tokens]).T
        return cls(
            begin_ns=begin_ns,
            rows=sorted(rows.tolist()),
            logit_rows=batch.logit_rows.tolist(),
            duration_ns=cost.duration_ns,
            joules=cost.chip_joules,
        )


class SeenSteps:
    """A watcher of a simulation, which keeps every step."""

    def __init__(self) -> None:
        self.seen: list[SeenStep] = []

    def __call__(
        self, cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: Sequence[RankQueues]
    ) -> None:
        """Keep one step."""
        del queues
        self.seen.append(SeenStep.of(cost, batch, begin_ns=begin_ns))


@dataclass(kw_only=True)
class LiveServing:
    """A live run: KV blocks a rank, times of each request, [requests], steps, the meter."""

    kv_blocks: int
    first_token_s: Float64s
    last_token_s: Float64s
    steps: list[SeenStep] = field(default_factory=list)
    chip_joules: float = 0.0


class _Wall:
    """A wall clock that moves when the engine sleeps or rests, by `move`."""

    def __init__(self) -> None:
        self.now_ns = 0

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS_PER_S)


class _Core:
    """Scheduler and executor of a server, whose host takes no time."""

    def __init__(self, *flags: str, **settings: Any) -> None:
        given = Settings(**({"clock": f"dilated:{DILATION}", "computes": False} | settings))
        config = config_from_flags(
            *("--additional-config", json.dumps(given.to_additional_config())),
            *("--scheduling-policy", "priority"),  # as `ultraserve serve` starts vLLM
            *flags,
        )
        self.wall = _Wall()
        self.executor = UltraServeExecutor(config)
        specs = self.executor.get_kv_cache_specs()
        layouts = self.executor.get_supported_kv_cache_layouts()
        resolve_kv_cache_layout(config, layouts, [spec for part in specs for spec in part.values()])
        available = self.executor.determine_available_memory()
        (pool,) = get_kv_cache_configs(config, specs, available)
        config.cache_config.num_gpu_blocks = pool.num_blocks
        self.kv_blocks: int = pool.num_blocks
        clock = DilatedClock(DILATION, wall_ns=lambda: self.wall.now_ns, sleep_s=self.wall.sleep)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executor_module, "make_clock", lambda *_: clock)
            patch.setattr(executor_module, "start_tokens", started_tokens)
            self.executor.initialize_from_config([pool])
            self.executor.compile_or_warm_up_model()
        self.engine._time.rest = self.rest  # type: ignore[method-assign]
        self._plan_slowly()
        self.rests_until_ns = 0
        block_tokens = config.cache_config.block_size
        self.block_hasher = block_hasher(block_tokens)
        self.scheduler = LockstepScheduler(
            vllm_config=config,
            kv_cache_config=pool,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_tokens,
            hash_block_size=block_tokens,
        )

    def _plan_slowly(self) -> None:
        """Let the host take a while for the plan of a recovery, as it does."""
        machine = self.engine._live.machine
        plan = machine.recovery_plan

        def slow_plan(*args: Any, **how: Any) -> RecoveryPlan:
            self.wall.now_ns += PLAN_WALL_NS
            return plan(*args, **how)

        machine.recovery_plan = slow_plan  # type: ignore[method-assign]

    @property
    def engine(self) -> LiveEngine:
        return self.executor.live_engine()

    @property
    def now_ns(self) -> int:
        """Emulated."""
        return self.wall.now_ns // DILATION

    def rest(self) -> None:
        """A moment of the wall, but no longer than until something comes."""
        left_ns = self.rests_until_ns * DILATION - self.wall.now_ns
        rest_ns = round(REST_S * NS_PER_S)
        self.wall.now_ns += min(rest_ns, left_ns) if left_ns > 0 else rest_ns

    def add(self, number: int, *, prompt_tokens: int, output_tokens: int) -> None:
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0)
        self.scheduler.add_request(
            Request(
                str(number),
                [_PROMPT_TOKEN + number] * prompt_tokens,
                params,
                None,
                arrival_time=float(number),  # in their order
                block_hasher=self.block_hasher,
            )
        )

    def ask(self, call: MachineCall) -> None:
        (reply,) = self.executor.collective_rpc(METHOD, args=(to_json(call),))
        told = reply_from_json(reply)
        assert not isinstance(told, Refusal), told
        # A server is looked at all the time, and an idle one then goes on with what it was told.
        self.executor.collective_rpc(METHOD, args=(to_json(TelemetryRequest()),))

    def step(self) -> list[tuple[int, float]]:
        """A turn of the loop; the request of each token that it gave, and when."""
        decision = self.scheduler.schedule()
        result = self.executor.execute_model(decision)
        if result is None:
            result = self.executor.sample_tokens(self.scheduler.get_grammar_bitmask(decision))
        parts = self.scheduler.update_from_output(decision, result)
        if (drafts := self.executor.take_draft_token_ids()) is not None:
            self.scheduler.update_draft_token_ids(drafts)
        return [
            (int(output.request_id), part.timestamp)
            for part in parts.values()
            for output in part.outputs
            for _ in output.new_token_ids
        ]


def serve_live(
    traffic: Traffic, *flags: str, calls: Sequence[TimedCall] = (), **settings: Any
) -> LiveServing:
    """Serve `traffic`, and `calls`, on a live engine with vLLM's `flags` and our `settings`.

    Requests and calls come at their times, also while a step is held.
    """
    core = _Core(*flags, **settings)
    nothing = np.full(len(traffic), np.nan)
    run = LiveServing(
        kv_blocks=core.kv_blocks, first_token_s=nothing.copy(), last_token_s=nothing.copy()
    )
    meters = core.engine._meters
    count = meters.after_step

    def seen(cost: StepCost, batch: StepBatch, seats: Int64s, **more: Any) -> None:
        # Its own begin: a standstill before it counts as idle.
        begin_ns = more["end_ns"] - cost.duration_ns
        if more["output_tokens"] is not None:
            run.steps.append(SeenStep.of(cost, batch, begin_ns=begin_ns))
        count(cost, batch, seats, **more)

    meters.after_step = seen  # type: ignore[method-assign]
    arrival_ns = np.rint(traffic.arrival_s * NS_PER_S).astype(np.int64).tolist()
    events: list[tuple[int, Callable[[], None]]] = [
        (
            at_ns,
            partial(core.add, number, prompt_tokens=int(prompt), output_tokens=int(output)),
        )
        for number, (at_ns, prompt, output) in enumerate(
            zip(arrival_ns, traffic.prompt_tokens, traffic.output_tokens, strict=True)
        )
    ]
    events += [(each.at_ns, partial(core.ask, each.call)) for each in calls]
    events.sort(key=lambda event: event[0], reverse=True)
    left = traffic.output_tokens.copy()
    while left.any():
        while events and events[-1][0] <= core.now_ns:
            events.pop()[1]()
        core.rests_until_ns = events[-1][0] if events else 0
        if not core.scheduler.has_requests():
            core.wall.now_ns = events[-1][0] * DILATION
            continue
        for number, end_s in core.step():
            if np.isnan(run.first_token_s[number]):
                run.first_token_s[number] = end_s
            left[number] -= 1
            if not left[number]:
                run.last_token_s[number] = end_s
    run.chip_joules = float(meters.ledger.chip_joules(meters.ledger.end_ns).sum())
    core.scheduler.shutdown()
    core.executor.shutdown()
    return run
