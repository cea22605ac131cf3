"""The executor between vLLM's scheduler and the chips; the chips compute in this process."""

import functools
import itertools
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.engine import FinishReason
from vllm.v1.structured_output import StructuredOutputManager

from emulator.errors import HbmExhausted
from emulator.fleet import Fleet
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.hbm_usage import HbmUse, use_of
from emulator.specs.tensor_group import TensorSplit
from serving.plugin.engine_shutdown import HEED_SIGNALS, LEAVE_SIGNALS
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.translate import TimedOutput
from serving.wire.control_call import (
    METHOD,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    Refusal,
    RefusalCode,
    StateReply,
    StateRequest,
)
from tests.half_of_all import half_of_all
from tests.serving.plugin.core_engine import BLOCKS, Engine, executor
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config, kv_pool


class Memory:
    """The host's memory, as psutil tells it."""

    def __init__(self, available: int) -> None:
        self.available = available


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    return functools.partial(Engine, monkeypatch)


@pytest.mark.long
def test_a_step_is_computed_timed_and_reported(make_engine: Callable[..., Engine]) -> None:
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
    last = engine.executor.live_engine().telemetry()
    assert (last.steps, last.chips, last.lag_s) == (len(reports), 2, 0.0)
    assert last.emulated_s == pytest.approx(last.busy_s)
    watts = last.chip_joules / last.emulated_s
    assert 2 * engine.executor.machine.cost_model.idle_chip_watts < watts < last.provisioned_watts
    assert last.compute_wall_s > 0.0


@pytest.mark.long
def test_only_ranks_that_have_tokens_to_compute_are_asked(
    make_engine: Callable[..., Engine],
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


@pytest.mark.long
def test_what_finished_while_its_rank_rests_is_told_with_the_rank_s_next_step(
    make_engine: Callable[..., Engine],
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
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(2)
    _, idle, outputs = engine.turn()

    assert (engine.heard, outputs, idle.req_ids) == ([], [], [])
    assert isinstance(idle, TimedOutput)
    assert idle.report is not None
    assert engine.executor.live_engine().telemetry().steps == 0
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


def test_the_kv_pool_of_a_known_model_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(10**13))
    target = executor(chips=4, model="qwen3-30b-a3b")
    (free_bytes,) = target.determine_available_memory()

    # LNC 2: four logical cores, each alone on a stack of 36 GiB, of which 92 % may be used. From
    # it go the microcode of two physical cores, a quarter of 3 GB of activations and 1 GB of
    # collective buffers, and a quarter of the weights: all that is not experts, and 32 experts of
    # 3 x 2,048 x 768 BF16 in each of 48 layers.
    assert target.cache_config.gpu_memory_utilization == 0.92
    model = target.deployment.time_model
    replica_bytes = sum(
        group.copy_bytes for group in model.tensor_groups() if group.split is not TensorSplit.EXPERT
    )
    experts_bytes = 32 * 48 * 3 * 2_048 * 768 * 2
    core_bytes = 0.92 * 36 * 2**30 - 2 * 96e6 - 1e9 - (replica_bytes + experts_bytes) / 4
    # A token has keys and values of 4 heads of 128 in 48 layers: one head for each core.
    tokens = core_bytes / (2 * 48 * 128 * 2)
    assert free_bytes / model.kv_bytes_per_token == pytest.approx(tokens, abs=1)
    assert model.kv_bytes_per_token == 4 * 2 * 48 * 128 * 2


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "qwen3-30b-a3b"},
        {"model": "qwen3-30b-a3b", "tp": 2, "lnc": 1},
        {"model": "qwen3-30b-a3b", "lnc": 8, "eplb": {"num_redundant_experts": 16}},
        {"model": "gpt-oss-120b", "chips": 8, "tp": 4},
        {"model": "deepseek-v3", "chips": 32, "tp": 2},
        {"model": "llama-3.1-70b", "tp": 4, "computes": False},
    ],
)
def test_vllm_s_pool_is_what_the_hbm_leaves_to_a_rank(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(10**13))  # no host in the way
    target = executor(**({"chips": 4} | settings))
    (free_bytes,) = target.determine_available_memory()
    (specs,) = target.get_kv_cache_specs()
    model, machine = target.deployment.time_model, target.machine

    assert free_bytes == machine.kv_tokens_per_rank * model.kv_bytes_per_token
    assert len(specs) == model.layers
    page_bytes = sum(spec.page_size_bytes for spec in specs.values())
    assert page_bytes == model.kv_bytes_per_token * BLOCK_TOKENS
    layouts = target.get_supported_kv_cache_layouts()
    resolve_kv_cache_layout(target.vllm_config, layouts, list(specs.values()))
    (config,) = get_kv_cache_configs(target.vllm_config, [specs], [free_bytes])
    assert config.num_blocks == machine.kv_tokens_per_rank // BLOCK_TOKENS
    # The HBM holds that pool, and not a block's tokens more on every stack.
    machine.take_kv(config.num_blocks * BLOCK_TOKENS)
    machine.hbm.check()
    with pytest.raises(HbmExhausted):
        executor(**({"chips": 4} | settings)).machine.take_kv(2 * machine.kv_tokens_per_rank)


def test_the_chips_hold_the_pool_that_vllm_has_sized(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(2)
    machine = engine.executor.machine
    held = [
        sum(
            held_bytes
            for stack in chip
            for owner, held_bytes in stack.owner_bytes.items()
            if use_of(owner) is HbmUse.KV
        )
        for chip in machine.hbm.usage()
    ]

    kv_bytes = BLOCKS * BLOCK_TOKENS * engine.executor.deployment.time_model.kv_bytes_per_token
    assert held == [kv_bytes, kv_bytes]


@pytest.mark.parametrize("chips", [1, 4, 144])
def test_a_tiny_timed_model_gets_no_more_blocks_than_the_host_can_hold(chips: int) -> None:
    target = executor(chips=chips)
    (pool_bytes,) = target.determine_available_memory()
    blocks = pool_bytes // (target.deployment.time_model.kv_bytes_per_token * BLOCK_TOKENS)

    assert chips * blocks <= 2_000_000
    assert blocks * BLOCK_TOKENS >= target.model_config.max_model_len


@pytest.mark.parametrize("computes", [True, False])
def test_the_pools_of_all_ranks_fill_half_of_what_chips_leave_of_the_host_at_most(
    computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = executor(chips=4, tp=2, model="qwen3-30b-a3b", computes=computes)
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(800_000_000))
    (pool_bytes,) = target.determine_available_memory()
    tokens = pool_bytes // target.deployment.time_model.kv_bytes_per_token

    # The stand-in keeps 4 layers of 4 heads of 16 in FP32, keys and values: 2,048 bytes a token.
    left_bytes = 800_000_000 - target.deployment.host_need.total_bytes
    cap = left_bytes // 2 // 2 // 2_048
    assert tokens == (cap - cap % BLOCK_TOKENS if computes else target.machine.kv_tokens_per_rank)


def test_a_small_host_still_holds_one_whole_context(monkeypatch: pytest.MonkeyPatch) -> None:
    target = executor(chips=4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(1_000))
    (pool_bytes,) = target.determine_available_memory()

    tokens = pool_bytes // target.deployment.time_model.kv_bytes_per_token
    assert tokens == target.model_config.max_model_len + BLOCK_TOKENS  # block 0 is vLLM's own


TAKEN = {
    "lose": Fault(kind=FaultKind.LOSE_CHIP, chip=1),
    "hang": Fault(kind=FaultKind.HANG_CHIP, chip=1),
    "stack": Fault(kind=FaultKind.FAIL_STACK, chip=1, stack=2),
}


def with_requests(engine: Engine) -> Engine:
    for number, name in enumerate("abcd"):
        engine.add(name, 20 + number, first=50 + 100 * number, max_tokens=8)
    return engine


@pytest.fixture(scope="module")
def undisturbed() -> dict[bool, dict[str, list[int]]]:
    """What those requests get of chips that compute, and of chips that do not."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        engines = {
            computes: Engine(monkeypatch, 2, computes=computes) for computes in (True, False)
        }
        return {computes: with_requests(each).serve({}) for computes, each in engines.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "spares", "computes"), half_of_all(list(TAKEN.values()), [0, 1], [True, False])
)
def test_no_request_is_lost_and_no_text_changed_when_a_chip_is(
    fault: Fault,
    spares: int,
    computes: bool,
    make_engine: Callable[..., Engine],
    undisturbed: dict[bool, dict[str, list[int]]],
) -> None:
    engine = with_requests(make_engine(2, spares=spares, computes=computes))
    reports = []

    def inject() -> None:
        reports.append(engine.control(InjectRequest(fault=fault)))

    assert engine.serve({4: inject}) == undisturbed[computes]
    (report,) = reports
    assert isinstance(report, FaultReport)
    assert (report.accepted, report.survivable, report.number) == (True, True, 1)
    assert report.stall_s > 0.0, "it is noticed in a millisecond at least"
    state = engine.control(StateRequest())
    assert isinstance(state, StateReply)
    (record,) = state.state.faults
    assert record.recovery is not None
    assert (record.recovery.requests_moved, record.recovery.requests_failed) == (2, 0)
    assert [rank.up for rank in state.state.ranks] == [True, bool(spares)]


@pytest.mark.long
def test_requests_end_with_an_error_when_no_chip_is_left_and_the_engine_goes_on(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(1)
    engine.add("a", 20, max_tokens=8)
    engine.turn()
    engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0)))
    ended = []
    for _ in range(4):
        ended += [out for out in engine.turn()[2] if out.finish_reason is not None]

    assert [(out.request_id, out.finish_reason) for out in ended] == [("a", FinishReason.ERROR)]
    assert engine.control(HealRequest()) == HealReport(healed=(1,))
    engine.turn()  # which tells the scheduler that its rank is back
    engine.add("b", 20, max_tokens=3)
    assert len(engine.serve({})["b"]) == 3


def test_a_request_that_cannot_be_read_is_a_mistake_and_one_that_cannot_be_met_a_refusal(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(2)
    with pytest.raises(msgspec.ValidationError):
        engine.executor.collective_rpc(METHOD, args=('{"method": "explode"}',))

    reply = engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=7)))
    assert isinstance(reply, Refusal)
    assert reply.code is RefusalCode.INVALID
    assert reply.message.startswith("chip=7: expected 0 to 1")


@pytest.mark.parametrize(
    ("clock", "dilation"), [("dilated:3", 3.0), ("real", 1.0), ("virtual", 0.0)]
)
def test_a_clock_that_was_given_is_taken_without_asking_what_the_host_can_do(
    clock: str, dilation: float, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(2, clock=clock)

    state = engine.control(StateRequest())
    assert isinstance(state, StateReply)
    assert state.state.dilation == dilation
    assert engine.heard == []


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


@pytest.mark.parametrize("method", ["add_lora", "save_sharded_state", print])
def test_a_call_without_an_answer_is_refused_by_name(method: Any) -> None:
    with pytest.raises(NotImplementedError, match="is not available on emulated chips"):
        executor(chips=2).collective_rpc(method)


@pytest.mark.parametrize("method", [LEAVE_SIGNALS, HEED_SIGNALS])
def test_signals_are_left_and_heeded_on_demand(method: str) -> None:
    target = executor(chips=2)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert target.collective_rpc(LEAVE_SIGNALS) == [None]
        assert target.collective_rpc(method) == [None]
        left = signal.getsignal(signal.SIGTERM) is not before
        assert left == (method == LEAVE_SIGNALS)
    finally:
        target.collective_rpc(HEED_SIGNALS)
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_engine_whose_chips_cannot_be_started_any_more_fails(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Callable[[str], None]] = []
    monkeypatch.setattr(Fleet, "watch", lambda _, lost: told.append(lost))
    failures: list[str] = []
    engine = make_engine(2)
    engine.executor.register_failure_callback(lambda: failures.append("failed"))

    (lost,) = told
    lost("raylet")

    assert failures == ["failed"]


def test_shutting_down_what_never_started_does_nothing() -> None:
    target = executor(chips=2)
    target.shutdown()
    target.shutdown()

    with pytest.raises(AssertionError, match="the chips are not started"):
        target.live_fleet()
    with pytest.raises(AssertionError, match="the clock is not set"):
        target.live_engine()


def test_shutting_down_stops_the_chips_once(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(2)
    fleet = engine.executor.live_fleet()
    engine.executor.shutdown()
    engine.executor.shutdown()

    assert fleet.live_chips == frozenset()
    engine.executor.check_health()
