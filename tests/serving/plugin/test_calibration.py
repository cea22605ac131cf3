"""Calibration finds a dilation at which a host of known slowness keeps up."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from emulator.data import SMALL_MOE_DIR
from emulator.specs.step import RankOutput, RankStep
from serving.plugin.calibration import SAFETY, calibrate
from serving.plugin.deployment import resolve_deployment
from serving.plugin.translate import step_batch
from serving.settings import Settings

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
    host: Host,
    *,
    tokens: int = 128,
    requests: int = 8,
    blocks: int = KV_BLOCKS,
    context: int = 40_960,
) -> float:
    return calibrate(
        host,
        COST,
        ranks=CHIPS,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=blocks,
        max_model_len=context,
        max_batched_tokens=tokens,
        max_requests=requests,
    )


@pytest.mark.parametrize("seconds", [0.002, 0.02])
def test_the_dilation_is_at_least_the_head_room_times_the_worst_known_ratio(
    seconds: float,
) -> None:
    host = Host(seconds)
    dilation = run(host)

    assert dilation >= SAFETY * seconds / min(host.emulated_s)


def test_a_slower_host_needs_more_dilation() -> None:
    assert run(Host(0.1)) > run(Host(0.0))


def test_a_dilation_has_two_significant_digits_and_is_never_below_one() -> None:
    for seconds in (0.0, 0.001, 0.01):
        dilation = run(Host(seconds))
        assert dilation >= 1.0
        assert float(f"{dilation:.1e}") == pytest.approx(dilation)


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

    def dilation(measured_tokens_max: int) -> float:
        monkeypatch.setattr("serving.plugin.calibration.MEASURED_TOKENS_MAX", measured_tokens_max)
        return calibrate(
            compute,
            COST,
            ranks=CHIPS,
            block_tokens=BLOCK_TOKENS,
            kv_blocks=10_000,
            max_model_len=40_960,
            max_batched_tokens=4_096,
            max_requests=8,
        )

    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    whole = dilation(8_192)
    assert dilation(1_024) == whole
    assert dilation(1) == whole  # never less than one token of one request on each rank
