from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.efficiency import PowerBasis
from emulator.power.system_power import SystemPower
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.ultraserver.step_cost import StepCostModel
from serving.analysis.steady_state import sweep as sweeping
from serving.analysis.steady_state.partitions import (
    PartitionCandidate,
    PartitionFilter,
    candidate_partitions,
)
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.step_batches import prefill_steps, prompt_chunks, steady_batch
from serving.simulator import SimulationWorkers
from tests.serving.analysis.steady_state.small_machines import MODEL, SHAPE, small_sweep, trays

SYSTEM = trays(1)


def candidate(ep: int) -> PartitionCandidate:
    asked = PartitionFilter(tp=(1,), ep=(ep,), lnc=(2,))
    (only,) = candidate_partitions(SYSTEM, MODEL, asked=asked)
    return only


TWO_RANKS = candidate(ep=2)


def replica(shape: RequestShape = SHAPE, system=SYSTEM) -> Replica:
    return Replica(
        system, MODEL, TWO_RANKS, shape=shape, assumptions=StepAssumptions(calibration=ROOFLINE)
    )


def test_a_mixed_step_has_the_decodes_and_the_prompt_tokens_that_keep_the_batch_full() -> None:
    # 8 requests of 512 + 256 tokens: 8 x 512 / 256 = 16 prompt tokens a step, from the middle of a
    # prompt, (512 - 16) / 2 = 248 tokens into it. A decode has 512 + 128 tokens cached.
    per_step = SHAPE.prefill_per_step(8)
    batch = steady_batch(2, decodes=8, shape=SHAPE, prefill_tokens=int(per_step))

    assert per_step == 16
    assert batch.tokens_by_rank().tolist() == [24, 24]
    assert batch.new_tokens.tolist() == [*[1] * 8, 16] * 2
    assert batch.context_tokens.tolist() == [*[640] * 8, 248] * 2
    assert batch.logit_rows.tolist() == [9, 9]


def test_what_is_cached_of_a_prompt_is_context_and_not_computed() -> None:
    # 8 requests of 512 + 256 tokens, 384 of each prompt cached: 8 x 128 / 256 = 4 prompt tokens a
    # step, from the middle of what is computed: 384 + (128 - 4) / 2 = 446 tokens in.
    shape = replace(SHAPE, cached_tokens=384)
    batch = steady_batch(2, decodes=8, shape=shape, prefill_tokens=4)
    whole = steady_batch(1, decodes=0, shape=shape, prefill_tokens=256)
    (alone,) = prompt_chunks(2, shape)
    (together,), prompts = prefill_steps(2, shape)

    assert shape.prefill_per_step(8) == 4
    assert batch.new_tokens.tolist() == [*[1] * 8, 4] * 2
    assert batch.context_tokens.tolist() == [*[640] * 8, 446] * 2
    assert (whole.new_tokens.tolist(), whole.context_tokens.tolist()) == ([128] * 2, [384] * 2)
    assert (alone.new_tokens.tolist(), alone.context_tokens.tolist()) == ([128], [384])
    assert prompts == SHAPE.batched_tokens_max // 128
    assert set(together.context_tokens.tolist()) == {384}


def test_what_is_common_to_all_requests_takes_its_kv_once() -> None:
    capacity = TWO_RANKS.kv_capacity_tokens
    shared = replica(replace(SHAPE, cached_tokens=384, common_tokens=384))

    assert replica(replace(SHAPE, cached_tokens=384)).kv_batch_max == capacity // 768
    assert shared.kv_batch_max == (capacity - 384) // 384


@pytest.mark.parametrize(("cached", "common"), [(512, 0), (-1, 0), (100, 101)])
def test_a_prompt_with_nothing_to_compute_is_refused(cached: int, common: int) -> None:
    with pytest.raises(ConfigError, match=r"(cached|common)_tokens="):
        replace(SHAPE, cached_tokens=cached, common_tokens=common)


@given(st.integers(0, 40), st.integers(0, 3_000), st.integers(1, 900))
def test_a_steady_batch_has_every_token_that_it_was_asked_for(decodes, prefill, prompt) -> None:
    shape = RequestShape(prompt_tokens=prompt, output_tokens=7)
    if decodes + prefill == 0:
        return

    batch = steady_batch(3, decodes=decodes, shape=shape, prefill_tokens=prefill)

    assert batch.tokens_by_rank().tolist() == [decodes + prefill] * 3
    assert batch.new_tokens.max(initial=0) <= max(1, prompt)
    assert (batch.context_tokens[batch.new_tokens > 1] < prompt).all()


@pytest.mark.parametrize(
    ("prompt", "limit", "sizes"), [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 4, [3])]
)
def test_a_prompt_is_computed_in_steps_that_the_limit_allows(prompt, limit, sizes) -> None:
    shape = RequestShape(prompt_tokens=prompt, output_tokens=1, batched_tokens_max=limit)

    alone = prompt_chunks(2, shape)
    together, prompts = prefill_steps(2, shape)

    assert [step.new_tokens.tolist() for step in alone] == [[size] for size in sizes]
    assert [int(step.context_tokens[0]) for step in alone] == list(range(0, prompt, limit))
    assert sum(int(step.tokens_by_rank()[1]) for step in together) == prompts * prompt


def test_time_per_token_is_what_the_cost_model_says_of_the_mixed_step() -> None:
    costs = StepCostModel(SYSTEM, MODEL, TWO_RANKS.partition, calibration=ROOFLINE)
    mixed = StepBatch(
        ranks=2,
        rank=np.repeat(np.arange(2), 9),
        new_tokens=np.array([*[1] * 8, 16] * 2),
        context_tokens=np.array([*[640] * 8, 248] * 2),
        logit_rows=np.array([9, 9]),
    )
    cost = costs.cost(mixed)

    point = replica().operating_point(8)

    assert point.tpot_ns == cost.duration_ns
    assert point.tokens_per_s_per_user == pytest.approx(1e9 / cost.duration_ns)
    # Two replicas of two ranks with 8 requests each; each request takes 256 such steps.
    assert point.users == 32
    assert point.requests_per_s == pytest.approx(32 / (256 * cost.duration_ns * 1e-9))
    assert point.output_tokens_per_s == pytest.approx(32 / (cost.duration_ns * 1e-9))
    assert point.input_tokens_per_s == pytest.approx(2 * point.output_tokens_per_s)
    assert point.chip_watts == pytest.approx(cost.chip_watts.mean())


def test_a_first_token_takes_as_long_as_its_prompt_alone() -> None:
    costs = StepCostModel(SYSTEM, MODEL, TWO_RANKS.partition, calibration=ROOFLINE)
    prompt = StepBatch(
        ranks=2,
        rank=np.array([0]),
        new_tokens=np.array([512]),
        context_tokens=np.array([0]),
        logit_rows=np.array([1, 0]),
    )

    assert replica().operating_point(1).ttft_ns == costs.cost(prompt).duration_ns


def test_prompts_in_large_chunks_hold_up_a_share_of_the_steps() -> None:
    # 16 prompt tokens a step, 64 at a time: every fourth step has them.
    costs = StepCostModel(SYSTEM, MODEL, TWO_RANKS.partition, calibration=ROOFLINE)
    chunked = replace(SHAPE, prefill_chunk_tokens=64)
    decode = costs.cost(steady_batch(2, decodes=8, shape=SHAPE)).duration_ns
    mixed = costs.cost(steady_batch(2, decodes=8, shape=SHAPE, prefill_tokens=64)).duration_ns

    point = replica(chunked).operating_point(8)

    assert point.tpot_ns == pytest.approx(0.25 * mixed + 0.75 * decode)


def test_watts_of_the_machine_are_those_that_its_power_model_gives() -> None:
    point = replica().operating_point(64)
    power = SystemPower(SYSTEM)

    facility = power.facility_watts(4 * point.chip_watts, chips=4)

    assert point.drawn_watts == pytest.approx(facility.total_watts)
    assert point.provisioned_watts == pytest.approx(SYSTEM.provisioned_watts.value)
    assert point.all_in_watts == pytest.approx(point.provisioned_watts * SYSTEM.pue.value)
    per_mw = point.output_tokens_per_s_per_mw(PowerBasis.DRAWN)
    assert per_mw == pytest.approx(point.output_tokens_per_s / facility.total_watts * 1e6)


def test_chips_that_are_given_too_little_power_take_longer_for_the_same_work() -> None:
    point = replica().operating_point(64)
    chip, idle = SYSTEM.chip, SYSTEM.chip.idle_watts.value
    cap = idle + (point.chip_watts - idle) / 2
    tight = replace(SYSTEM, chip=replace(chip, budget_watts=replace(chip.budget_watts, value=cap)))

    held = Replica(
        tight, MODEL, TWO_RANKS, shape=SHAPE, assumptions=StepAssumptions(calibration=ROOFLINE)
    ).operating_point(64)

    assert point.throttle_factor == 1
    assert held.throttle_factor == pytest.approx(held.tpot_ns / point.tpot_ns, rel=1e-4)
    assert held.chip_watts <= cap * (1 + 1e-9)
    # The work above idle is the same, in more time.
    work = (held.chip_watts - idle) * held.tpot_ns
    assert work == pytest.approx((point.chip_watts - idle) * point.tpot_ns, rel=1e-4)


def test_batches_together_cost_what_each_costs_alone() -> None:
    chunked = replica(replace(SHAPE, prefill_chunk_tokens=64))
    for one in (replica(), chunked):
        together = one.operating_points([1, 7, 64])

        assert together == [one.operating_point(batch) for batch in (1, 7, 64)]
        assert one.decodes([1, 7, 64]) == [one.decode(batch) for batch in (1, 7, 64)]
    assert chunked.operating_points([]) == []


def test_chips_left_over_draw_idle_power_and_are_provisioned() -> None:
    three = candidate(ep=3)
    point = Replica(
        SYSTEM, MODEL, three, shape=SHAPE, assumptions=StepAssumptions(calibration=ROOFLINE)
    ).operating_point(16)
    costs = StepCostModel(SYSTEM, MODEL, three.partition, calibration=ROOFLINE)
    step = costs.cost(steady_batch(3, decodes=16, shape=SHAPE, prefill_tokens=32))

    watts = step.chip_watts.sum() + SYSTEM.chip.idle_watts.value

    assert three.replicas == 1
    assert 4 * point.chip_watts == pytest.approx(watts)
    assert point.provisioned_watts == pytest.approx(SYSTEM.provisioned_watts.value)


def test_batches_are_powers_of_two_and_what_the_pool_holds() -> None:
    room = TWO_RANKS.kv_capacity_tokens // SHAPE.tokens
    batches = list(replica().batches())

    assert batches[:-1] == [2**power for power in range(len(batches) - 1)]
    assert batches[-1] <= room
    assert batches[-1] * 3 <= SHAPE.batched_tokens_max  # 1 + 512 / 256 tokens a request and step
    assert list(replica().batches((1, 7, 10**9))) == [1, 7]


def test_a_small_pool_limits_the_batch() -> None:
    small = replace(TWO_RANKS, kv_capacity_tokens=5 * SHAPE.tokens + SHAPE.tokens - 1)
    few = Replica(
        SYSTEM, MODEL, small, shape=SHAPE, assumptions=StepAssumptions(calibration=ROOFLINE)
    )

    assert few.kv_batch_max == 5
    assert list(few.batches()) == [1, 2, 4, 5]
    assert list(few.batches(decode_only=True)) == [1, 2, 4, 5]


@pytest.mark.long
@settings(max_examples=15)
@given(st.integers(1, 200), st.integers(1, 200))
def test_more_requests_never_make_a_token_come_sooner(few, more) -> None:
    few, more = sorted((few, few + more))
    small, large = replica().operating_point(few), replica().operating_point(more)

    assert large.tpot_ns >= small.tpot_ns


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt_tokens": 0}, "input=0"),
        ({"output_tokens": 0}, "output=0"),
        ({"batched_tokens_max": 0}, "max-num-batched-tokens=0"),
        ({"prefill_chunk_tokens": 9_000}, "prefill-tokens=9000"),
    ],
)
def test_lengths_that_cannot_be_are_refused(wrong, says) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(SHAPE, **wrong)


class InTurn(SimulationWorkers):
    """The parts of two processes, one after the other in this one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 2


def test_a_sweep_in_parts_gives_the_same_points_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeping, "PARALLEL_FROM", 2)
    question = small_sweep(batches=(4,))

    found = sweeping.operating_points(question, workers=InTurn())

    assert found == sweeping.operating_points(question)
    assert len(found) == len(question.tasks()) > 2


@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_gives_the_same_points_however_the_work_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeping, "PARALLEL_FROM", 2)
    question = small_sweep(batches=(4,))
    alone = sweeping.operating_points(question)

    with SimulationWorkers(2) as workers:
        assert sweeping.operating_points(question, workers=workers) == alone
    assert len(alone) == len(question.tasks())
