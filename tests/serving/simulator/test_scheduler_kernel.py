"""The compiled schedulers decide as vLLM's do, step by step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.simulator.scheduler_arrays import SchedulerBounds
from tests.serving.simulator.vllm_ranks import (
    AskedRequest,
    RankConfig,
    compiled_decisions,
    vllm_decisions,
)

STEPS = 120
POLICIES = ("none", "balanced:2:8:24", "capped:16", "staggered:1")


@st.composite
def configs(draw: st.DrawFn) -> RankConfig:
    seats = draw(st.integers(1, 5))
    return RankConfig(
        ranks=draw(st.integers(1, 3)),
        kv_blocks=draw(st.integers(34, 60)),
        bounds=SchedulerBounds(
            seats=seats,
            step_tokens=draw(st.integers(seats, 64)),
            block_tokens=16,
            long_prefill_tokens=draw(st.sampled_from([0, 0, 8, 20])),
            by_priority=draw(st.booleans()),
        ),
        policy=draw(st.sampled_from(POLICIES)),
        caching=draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn) -> AskedRequest:
    """Prompts that begin alike, in one of three ways."""
    step = draw(st.integers(0, 60))
    shared = draw(st.integers(0, 2))
    prompt = (shared,) * draw(st.integers(1, 140)) + tuple(
        draw(st.lists(st.integers(10, 12), max_size=40))
    )
    return AskedRequest(
        step=step,
        prompt=prompt,
        output_tokens=draw(st.integers(1, 60)),
        priority=draw(st.integers(0, 2)),
        abort_step=step + draw(st.one_of(st.just(-1_000), st.integers(0, 50))),
    )


@pytest.mark.long
@settings(max_examples=40)
@given(config=configs(), asked=st.lists(requests(), min_size=1, max_size=24))
def test_every_decision_is_vllm_s(config: RankConfig, asked: list[AskedRequest]) -> None:
    asked = sorted(asked, key=lambda each: each.step)
    both = zip(
        vllm_decisions(config, asked, STEPS), compiled_decisions(config, asked, STEPS), strict=True
    )
    for step, (theirs, ours) in enumerate(both):
        assert ours == theirs, step
