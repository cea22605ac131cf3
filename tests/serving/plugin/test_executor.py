"""The executor between vLLM's scheduler and the chips; the chips compute in this process."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from emulator.data import SMALL_MOE_DIR
from emulator.specs.step import RankOutput, RankStep
from serving.plugin.executor import UltraServeExecutor
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.step_report import TimedOutput
from tests.emulator.chip.in_process import InProcessChips
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config, kv_pool
from tests.serving.plugin.lockstep_workload import Arrival

BLOCKS = 64


def executor(**settings: Any) -> UltraServeExecutor:
    config = engine_config(additional_config={"ultraserve": {"clock": "virtual"} | settings})
    return UltraServeExecutor(config)


class Engine:
    """What vLLM's EngineCore does with a scheduler and an executor, in its order."""

    def __init__(self, chips: int) -> None:
        self.executor = executor(chips=chips)
        config = self.executor.vllm_config
        self.scheduler = LockstepScheduler(
            vllm_config=config,
            kv_cache_config=kv_pool(config, BLOCKS),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.chips = InProcessChips(
            SMALL_MOE_DIR, chips=chips, kv_blocks=BLOCKS, block_tokens=BLOCK_TOKENS
        )
        self.heard: list[list[RankStep]] = []
        self.executor._fleet = self  # type: ignore[assignment]
        self.executor._kv_blocks = BLOCKS
        self.executor.compile_or_warm_up_model()
        self.heard.clear()

    def step(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> dict[int, RankOutput]:
        """Stand where the fleet does, and listen."""
        self.heard.append(list(steps))
        return self.chips.step(steps, bitmasks)

    def turn(self) -> tuple[SchedulerOutput, ModelRunnerOutput, list[EngineCoreOutput]]:
        decision = self.scheduler.schedule()
        result = self.executor.execute_model(decision, non_block=True).result()
        if result is None:
            grammar = self.scheduler.get_grammar_bitmask(decision)
            result = self.executor.sample_tokens(grammar)
        outputs = self.scheduler.update_from_output(decision, result)
        return decision, result, [one for part in outputs.values() for one in part.outputs]

    def add(self, name: str, tokens: int, *, first: int = 50, max_tokens: int = 3) -> None:
        prompt = tuple(range(first, first + tokens))
        request = Arrival(name=name, prompt=prompt, max_tokens=max_tokens).request()
        assert request.sampling_params is not None
        request.sampling_params.temperature = 0.0
        self.scheduler.add_request(request)


@pytest.fixture(scope="module")
def make_engine() -> Callable[[int], Engine]:
    return Engine


def test_a_step_is_computed_timed_and_reported(make_engine: Callable[[int], Engine]) -> None:
    engine = make_engine(2)
    for number, name in enumerate("abc"):
        engine.add(name, 20 + number, first=50 + 100 * number)

    reports = []
    tokens: dict[str, list[int]] = {name: [] for name in "abc"}
    while engine.scheduler.has_unfinished_requests():
        decision, result, outputs = engine.turn()
        assert isinstance(result, TimedOutput)
        assert result.report is not None
        assert sorted(result.req_ids) == sorted(decision.num_scheduled_tokens)
        reports.append(result.report)
        for output in outputs:
            tokens[output.request_id] += output.new_token_ids

    assert {name: len(got) for name, got in tokens.items()} == {"a": 3, "b": 3, "c": 3}
    assert reports[0].begin_s == 0.0
    for before, after in itertools.pairwise(reports):
        assert after.begin_s == before.end_s < after.end_s
    last = reports[-1].snapshot
    assert (last.steps, last.chips, last.lag_s) == (len(reports), 2, 0.0)
    assert last.emulated_s == pytest.approx(last.busy_s)
    watts = last.chip_joules / last.emulated_s
    deployment = engine.executor.deployment
    assert 2 * deployment.cost.idle_chip_watts < watts < last.provisioned_watts
    assert last.compute_wall_s > 0.0


def test_only_ranks_that_have_tokens_to_compute_are_asked(
    make_engine: Callable[[int], Engine],
) -> None:
    engine = make_engine(2)
    engine.add("a", 20, max_tokens=1)
    engine.turn()  # rank 0 finishes "a"
    engine.add("filler", 40, first=400, max_tokens=5)
    engine.turn()
    engine.add("b", 5, first=600, max_tokens=2)
    engine.turn()

    asked = [[step.rank for step in steps] for steps in engine.heard]
    assert asked == [[0], [0], [0, 1]]
    finished = {
        (step.rank, name) for steps in engine.heard for step in steps for name in step.finished
    }
    assert finished == {(0, "a")}


def test_what_finished_while_its_rank_rests_is_told_with_the_rank_s_next_step(
    make_engine: Callable[[int], Engine],
) -> None:
    engine = make_engine(2)
    engine.add("a", 20, max_tokens=9)
    engine.add("b", 20, first=300, max_tokens=1)
    engine.turn()  # "b" ends on rank 1, which then has nothing to do
    for _ in range(3):
        engine.turn()
    assert [[step.rank for step in steps] for steps in engine.heard] == [[0, 1], [0], [0], [0]]
    engine.add("c", 8, first=600, max_tokens=2)
    engine.turn()

    last = {step.rank: step.finished for step in engine.heard[-1]}
    assert last == {0: [], 1: ["b"]}


def test_a_step_without_tokens_asks_no_chip_and_repeats_the_last_report(
    make_engine: Callable[[int], Engine],
) -> None:
    engine = make_engine(2)
    _, idle, outputs = engine.turn()

    assert (engine.heard, outputs, idle.req_ids) == ([], [], [])
    assert isinstance(idle, TimedOutput)
    assert idle.report is not None
    assert idle.report.snapshot.steps == 0
    assert idle.report.end_s == 0.0


def test_before_the_clock_is_set_an_idle_step_has_no_report() -> None:
    config = engine_config(2)
    scheduler = LockstepScheduler(
        vllm_config=config,
        kv_cache_config=kv_pool(config, BLOCKS),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
    )
    result = executor(chips=2).execute_model(scheduler.schedule())

    assert not isinstance(result, TimedOutput)
    assert result.req_ids == []


def test_tokens_without_a_decision_are_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="sample_tokens without execute_model"):
        executor(chips=1).sample_tokens(None)


def test_the_kv_pool_is_what_the_timed_model_s_hbm_leaves() -> None:
    target = executor(chips=4, model="qwen3-30b-a3b")
    deployment = target.deployment
    (free_bytes,) = target.determine_available_memory()
    (specs,) = target.get_kv_cache_specs()

    # By hand: 4 x 36 GiB, 92 % of it, less the weights and 96 MB of microcode for each of 8 cores.
    weights_bytes = deployment.cost.weight_bytes_per_chip
    expected_bytes = 0.92 * 4 * 36 * 2**30 - weights_bytes - 8 * 96e6
    assert target.cache_config.gpu_memory_utilization == 0.92
    assert free_bytes == pytest.approx(expected_bytes, abs=1)
    assert len(specs) == deployment.time_model.layers
    page_bytes = sum(spec.page_size_bytes for spec in specs.values())
    assert page_bytes == deployment.time_model.kv_bytes_per_token * BLOCK_TOKENS
    layouts = target.get_supported_kv_cache_layouts()
    resolve_kv_cache_layout(target.vllm_config, layouts, list(specs.values()))
    (config,) = get_kv_cache_configs(target.vllm_config, [specs], [free_bytes])
    assert config.num_blocks == free_bytes // page_bytes


@pytest.mark.parametrize("chips", [1, 4, 144])
def test_a_tiny_timed_model_gets_no_more_blocks_than_the_host_can_hold(chips: int) -> None:
    target = executor(chips=chips)
    (pool_bytes,) = target.determine_available_memory()
    blocks = pool_bytes // (target.deployment.time_model.kv_bytes_per_token * BLOCK_TOKENS)

    assert chips * blocks <= 2_000_000
    assert blocks * BLOCK_TOKENS >= target.model_config.max_model_len


CONTROL = {
    "get_supported_tasks": ("generate",),
    "update_max_model_len": None,
    "reset_mm_cache": None,
    "reset_encoder_cache": None,
    "synchronize_device": None,
    "supports_draft_weight_updates": False,
}


@pytest.mark.parametrize("method", CONTROL)
def test_vllm_s_control_calls_are_answered_as_by_one_worker(method: str) -> None:
    target = executor(chips=2)

    assert target.collective_rpc(method) == [CONTROL[method]]
    assert target.collective_rpc(method, non_block=True).result() == [CONTROL[method]]


@pytest.mark.parametrize("method", ["add_lora", "sleep", print])
def test_a_call_without_an_answer_is_refused_by_name(method: Any) -> None:
    with pytest.raises(NotImplementedError, match="is not available on emulated chips"):
        executor(chips=2).collective_rpc(method)


def test_shutting_down_what_never_started_does_nothing() -> None:
    target = executor(chips=2)
    target.shutdown()
    target.shutdown()

    with pytest.raises(AssertionError, match="the chips are not started"):
        target.check_health()
