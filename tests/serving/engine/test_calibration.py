"""Calibration finds how slow a host of known slowness is, for four kinds of load."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from emulator.data import SMALL_MOE_DIR
from emulator.sim.load_follower import HEADROOM
from emulator.specs.step import RankOutput, RankStep, Scheduled
from serving.engine.calibration import (
    HOST_REQUEST_STEP_S,
    HOST_STEP_S,
    PoolLimits,
    Step,
    first_dilation,
    host_ratios,
)
from serving.engine.deployment import resolve_deployment
from serving.engine.step_batch import step_batch
from serving.settings import Settings
from serving.wire.machine_state import HostRatio

CHIPS, BLOCK_TOKENS, KV_BLOCKS = 2, 32, 100
DEPLOYMENT = resolve_deployment(Settings(chips=CHIPS, model="qwen3-30b-a3b"), SMALL_MOE_DIR)
COST = DEPLOYMENT.machine(0.92).cost_model


class Host:
    """Chips that answer each step with made-up tokens, after a known time, and keep notes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.steps: list[list[RankStep]] = []
        self.emulated_s: list[float] = []

    def __call__(
        self, steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> Mapping[int, RankOutput]:
        assert not bitmasks
        time.sleep(self.seconds)
        self.steps.append(list(steps))
        outputs = {step.rank: answer(step) for step in steps}
        if any(step.scheduled for step in steps):
            batch = step_batch(steps, outputs, CHIPS)
            self.emulated_s.append(COST.cost(batch).duration_ns / 1e9)
        return outputs


def answer(step: RankStep) -> RankOutput:
    names = [item.request_id for item in step.scheduled]
    tokens = np.full(len(names), 5, dtype=np.int32)
    return RankOutput(
        rank=step.rank, request_ids=names, token_ids=tokens, logprobs=None, prompt_logprobs={}
    )


def run(
    host: Step,
    *,
    tokens: int = 128,
    requests: int = 8,
    blocks: int = KV_BLOCKS,
    context: int = 40_960,
    expected: int | None = None,
) -> tuple[HostRatio, ...]:
    limits = PoolLimits(
        block_tokens=BLOCK_TOKENS,
        kv_blocks=blocks,
        max_model_len=context,
        max_batched_tokens=tokens,
        max_requests=requests,
    )
    return host_ratios(host, COST, ranks=CHIPS, limits=limits, expected_requests=expected)


def decode_s(requests: int, *, ranks: int = CHIPS, context: int = 64) -> float:
    """What the cost model says of a decode step, each of the first `ranks` with `requests`."""
    names = [f"r{index}" for index in range(requests)]
    steps = [
        RankStep(
            rank=rank,
            new=[],
            scheduled=[
                Scheduled(request_id=name, first_position=context, new_tokens=1) for name in names
            ],
            finished=[],
        )
        for rank in range(ranks)
    ]
    outputs = {step.rank: answer(step) for step in steps}
    return COST.cost(step_batch(steps, outputs, CHIPS)).duration_ns / 1e9


@pytest.mark.parametrize("seconds", [0.002, 0.02])
def test_each_ratio_is_what_the_host_took_and_is_assumed_to_take_over_the_machine_s_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    now_s = 0.0

    def compute(
        steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> dict[int, RankOutput]:
        nonlocal now_s
        now_s += seconds
        return {step.rank: answer(step) for step in steps}

    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    found = run(compute)

    host_s = seconds + HOST_STEP_S + HOST_REQUEST_STEP_S * CHIPS
    assert found[1].ratio == pytest.approx(host_s / decode_s(1))
    host_s = seconds + HOST_STEP_S + HOST_REQUEST_STEP_S * CHIPS * 8
    assert found[2].ratio == pytest.approx(host_s / decode_s(8))
    assert found[3].ratio == pytest.approx(host_s / decode_s(8, context=1024))
    assert len(found) == 4


@pytest.mark.long
def test_a_slower_host_has_higher_ratios() -> None:
    slow, quick = run(Host(0.1)), run(Host(0.0))
    assert all(a.ratio > b.ratio for a, b in zip(slow, quick, strict=True))


def test_one_request_a_rank_chooses_where_nothing_is_expected() -> None:
    found = run(Host(0.0))
    assert [each.load for each in found if each.chosen] == ["decode, 1 request a rank"]


@pytest.mark.parametrize(
    ("expected", "ranks", "a_rank"), [(1, 1, 1), (2, 2, 1), (5, 2, 3), (1_000, 2, 8)]
)
def test_a_step_of_the_expected_requests_chooses_over_all_ranks_that_they_reach(
    expected: int, ranks: int, a_rank: int
) -> None:
    host = Host(0.001)
    found = run(host, expected=expected)

    (chosen,) = (each for each in found if each.chosen)
    assert chosen == found[-1]
    assert len(found) == 5
    assert chosen.load == f"decode, {expected} requests expected"
    last = [steps for steps in host.steps if any(step.scheduled for step in steps)][-1]
    assert [len(step.scheduled) for step in last] == [a_rank] * ranks


def test_the_first_dilation_is_the_chosen_ratio_with_head_room_and_never_below_one() -> None:
    ratios = [HostRatio(load="a", ratio=1_800.0), HostRatio(load="b", ratio=40.0, chosen=True)]
    assert first_dilation(ratios) == pytest.approx((1 + HEADROOM) * 40.0)
    assert first_dilation([HostRatio(load="b", ratio=0.2, chosen=True)]) == 1.0


@pytest.mark.parametrize(
    ("tokens", "requests", "blocks"),
    [(128, 8, KV_BLOCKS), (512, 64, KV_BLOCKS), (16, 1, 5), (512, 256, 3), (64, 1, 2000)],
)
def test_it_uses_blocks_of_the_pool_only_and_leaves_no_request_behind(
    tokens: int, requests: int, blocks: int
) -> None:
    host = Host(0.0)
    run(host, tokens=tokens, requests=requests, blocks=blocks)

    alive: set[tuple[int, str]] = set()
    tables: dict[tuple[int, str], list[int]] = {}
    for steps in host.steps:
        for step in steps:
            alive -= {(step.rank, name) for name in step.finished}
            for new in step.new:
                assert (step.rank, new.request_id) not in alive
                alive.add((step.rank, new.request_id))
                tables[step.rank, new.request_id] = new.block_ids
            for item in step.scheduled:
                table = tables[step.rank, item.request_id]
                assert (step.rank, item.request_id) in alive
                assert len(table) * BLOCK_TOKENS >= item.first_position + item.new_tokens
                assert all(0 < block < blocks for block in table)
    assert not alive


def sizes(host: Host) -> set[tuple[int, int, int]]:
    """Requests, tokens before the step and tokens in it, of each kind of step that was tried."""
    return {
        (len(step.scheduled), step.scheduled[0].first_position, step.scheduled[0].new_tokens)
        for steps in host.steps
        for step in steps
        if step.scheduled
    }


def test_it_prefills_as_much_as_a_step_may_hold_and_decodes_alone_and_together() -> None:
    host = Host(0.0)
    run(host, tokens=512, requests=8)

    assert sizes(host) == {(1, 0, 512), (1, 64, 1), (8, 64, 1), (8, 1024, 1)}
    assert all(len(steps) == CHIPS for steps in host.steps)


def test_it_tries_no_prompt_longer_than_the_context_or_two_thousand_tokens() -> None:
    host = Host(0.0)
    run(host, tokens=131_072, requests=64, blocks=10_000, context=131_072)
    # Of the four prompts that a step may hold, two ranks compute 8,192 tokens together: two each.
    assert sizes(host) == {(2, 0, 2048), (1, 64, 1), (16, 64, 1), (64, 1024, 1)}

    short = Host(0.0)
    run(short, tokens=512, requests=8, context=100)
    assert sizes(short) == {(5, 0, 99), (1, 64, 1), (8, 64, 1), (8, 99, 1)}


def test_steps_that_are_too_long_to_measure_count_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0

    def compute(
        steps: Sequence[RankStep], bitmasks: Mapping[int, NDArray[np.int32]]
    ) -> dict[int, RankOutput]:
        nonlocal now_s
        now_s += 1e-3 * sum(item.new_tokens for step in steps for item in step.scheduled)
        return {step.rank: answer(step) for step in steps}

    def ratios(measured_tokens_max: int) -> list[float]:
        monkeypatch.setattr("serving.engine.calibration.MEASURED_TOKENS_MAX", measured_tokens_max)
        found = run(compute, tokens=4_096, requests=8, blocks=10_000)
        return [each.ratio for each in found]

    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    whole = pytest.approx(ratios(8_192))
    assert ratios(1_024) == whole
    assert ratios(1) == whole  # never less than one token of one request on each rank
