"""The compiled schedulers decide as vLLM's do, step by step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.simulator.scheduler_arrays import SchedulerBounds
from tests.serving.simulator.vllm_ranks import (
    AskedRequest,
    RankChange,
    RankConfig,
    compiled_decisions,
    vllm_decisions,
)

pytestmark = pytest.mark.long

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
def rank_changes(draw: st.DrawFn, ranks: int) -> tuple[RankChange, ...]:
    """Ranks are lost, go down, close, come back, with other weights or the same."""
    changes, up = [], [True] * ranks
    for step in sorted(draw(st.sets(st.integers(0, STEPS), max_size=8))):
        lost = tuple(rank for rank in range(ranks) if draw(st.booleans()))
        could_read = [rank for rank in range(ranks) if rank in lost or not up[rank]]
        up = [draw(st.booleans()) or draw(st.booleans()) for _ in range(ranks)]
        changes.append(
            RankChange(
                step=step,
                up=tuple(up),
                closed=tuple(draw(st.integers(0, 3)) == 0 for _ in range(ranks)),
                lost=lost,
                renewed=tuple(rank for rank in could_read if draw(st.booleans())),
            )
        )
    return tuple(changes)


@st.composite
def with_drafts(draw: st.DrawFn) -> RankConfig:
    """Contexts down to the longest request's, and drafts that are right more or less often."""
    config = draw(configs())
    rates = draw(st.lists(st.sampled_from([0.0, 0.4, 0.9, 1.0]), min_size=1, max_size=5))
    bounds = config.bounds._replace(
        speculative_tokens=len(rates),
        draft_slots=draw(st.integers(0, 1)),
        step_tokens=config.bounds.step_tokens + 1,
        context_tokens=draw(st.integers(240, 300)),
    )
    return replace(config, bounds=bounds, acceptance=tuple(rates), policy="none")


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
        deadline_step=draw(st.one_of(st.just(-1), st.integers(step, step + 50))),
    )


@given(config=configs(), asked=st.lists(requests(), min_size=1, max_size=24))
def test_every_decision_is_vllm_s(config: RankConfig, asked: list[AskedRequest]) -> None:
    hold_equal(config, asked)


def hold_equal(config: RankConfig, asked: list[AskedRequest]) -> None:
    """Assert that both decide the same in each step."""
    asked = sorted(asked, key=lambda each: each.step)
    both = zip(
        vllm_decisions(config, asked, STEPS), compiled_decisions(config, asked, STEPS), strict=True
    )
    for step, (theirs, ours) in enumerate(both):
        assert ours == theirs, step


@given(data=st.data(), config=configs(), asked=st.lists(requests(), min_size=1, max_size=24))
def test_ranks_leave_and_come_back_as_vllm_s_do(
    data: st.DataObject, config: RankConfig, asked: list[AskedRequest]
) -> None:
    hold_equal(replace(config, changes=data.draw(rank_changes(config.ranks))), asked)


@given(config=with_drafts(), asked=st.lists(requests(), min_size=1, max_size=24))
def test_drafts_are_scheduled_and_verified_as_by_vllm(
    config: RankConfig, asked: list[AskedRequest]
) -> None:
    hold_equal(config, asked)
