"""The fast scheduler decides, and answers, as vLLM's schedulers in lockstep do, step by step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutputs

from serving.engine.step_report import StepReport
from serving.plugin import stats_client
from serving.process.front_program import API_CLIENT, FRONT_CLIENT
from tests.serving.plugin.driven_schedulers import (
    Asked,
    DrivenFast,
    DrivenLockstep,
    EngineShape,
    FastTurn,
)

POLICIES = ("none", "balanced:2:8:24", "capped:16", "staggered:1")
TURNS = 90


@st.composite
def shapes(draw: st.DrawFn) -> EngineShape:
    seats = draw(st.integers(1, 5))
    return EngineShape(
        ranks=draw(st.integers(1, 3)),
        kv_blocks=draw(st.integers(20, 44)),
        policy=draw(st.sampled_from(POLICIES)),
        clients=draw(st.integers(1, 3)),
        options={
            "max_num_seqs": seats,
            "max_num_batched_tokens": draw(st.integers(seats, 64)),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 8, 20])),
            "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
            "enable_prefix_caching": draw(st.booleans()),
        },
    )


def turns_of(seed: int, ranks: int, *, changes: bool, pauses: bool) -> list[FastTurn]:
    """Prompts that begin alike or go on with a reply, aborts at any time, ranks that change."""
    rng = np.random.default_rng(seed)
    names: list[str] = []

    def asked(mean: float) -> tuple[Asked, ...]:
        made = []
        for _ in range(rng.poisson(mean)):
            begin = (int(rng.integers(300, 303)),) * int(rng.integers(1, 100))
            made.append(
                Asked(
                    name=f"request-{len(names):04}",
                    prompt=(*begin, *rng.integers(400, 403, rng.integers(0, 30)).tolist()),
                    max_tokens=int(rng.integers(1, 50)),
                    follows=str(rng.choice(names)) if names and rng.random() < 0.3 else None,
                    priority=int(rng.integers(-1, 3)),
                    seed=int(rng.integers(9)) if rng.random() < 0.5 else None,
                    stop_token_ids=(
                        tuple(rng.integers(3, 1_000, 40).tolist()) if rng.random() < 0.3 else ()
                    ),
                )
            )
            names.append(made[-1].name)
        return tuple(made)

    def some(share: float) -> tuple[str, ...]:
        return tuple(name for name in names if rng.random() < share)

    turns, up = [], [True] * ranks
    for number in range(TURNS):
        busy = number < TURNS // 2
        news: dict[str, Any] = {"ranks_up": tuple(up)}
        if changes and rng.random() < 0.1:
            lost = tuple(rank for rank in range(ranks) if rng.random() < 0.4)
            could_read = [rank for rank in range(ranks) if rank in lost or not up[rank]]
            up = [rng.random() < 0.7 for _ in range(ranks)]
            news = {
                "ranks_up": tuple(up),
                "lost_ranks": lost,
                "silent_ranks": tuple(rank for rank in lost if rng.random() < 0.5),
                "closed_ranks": tuple(rank for rank in range(ranks) if rng.random() < 0.3),
                "renewed_ranks": tuple(rank for rank in could_read if rng.random() < 0.5),
            }
        pause = None
        if pauses and rng.random() < 0.2:
            pause = PauseState(int(rng.integers(3)))
        turns.append(
            FastTurn(
                aborted=some(0.01),
                asked=asked(0.7 if busy else 0.0),
                asked_meanwhile=asked(0.1 if busy else 0.0),
                aborted_meanwhile=some(0.005),
                aborted_late=some(0.005),
                pause=pause,
                reset=bool(rng.integers(2)) if pauses and rng.random() < 0.05 else None,
                news=news,
            )
        )
    return turns


def hold_equal(shape: EngineShape, turns: list[FastTurn]) -> int:
    """Assert that both do the same in each step; returns the tokens that clients got."""
    theirs, ours = DrivenLockstep(shape), DrivenFast(shape)
    for number, turn in enumerate(turns):
        assert ours.take(turn) == theirs.take(turn), number
    assert ours.texts == theirs.texts
    return sum(map(len, ours.texts.values()))


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_more_requests_than_rows_keep_their_places(policy: str) -> None:
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "scheduling_policy": policy}
    shape = EngineShape(ranks=2, kv_blocks=300, policy="none", options=options)
    waves = []
    for wave in range(2):
        asked = tuple(
            Asked(
                name=f"request-{wave}-{number:03}",
                prompt=(300 + number % 7,) * (10 + number % 30),
                max_tokens=1 + number % 9,
                priority=(5 * number + wave) % 4,
            )
            for number in range(400)
        )
        waves += [FastTurn(asked=asked), *[FastTurn()] * 60]
    theirs, ours = DrivenLockstep(shape), DrivenFast(shape)
    for turn in waves:
        assert ours.take(turn) == theirs.take(turn)
    assert ours.scheduler.get_num_unfinished_requests() == 0


@pytest.mark.long
def test_without_statistics_a_first_token_has_its_prompt_s_hits() -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    shape = EngineShape(ranks=2, kv_blocks=44, policy="none", options=options, log_stats=False)
    hold_equal(shape, turns_of(1, 2, changes=True, pauses=False))


SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.long
@given(shape=shapes(), seed=SEEDS)
def test_every_step_is_that_of_vllm_s_schedulers(shape: EngineShape, seed: int) -> None:
    hold_equal(shape, turns_of(seed, shape.ranks, changes=False, pauses=False))


@pytest.mark.slow
@given(shape=shapes(), seed=SEEDS)
def test_requests_leave_lost_and_closed_ranks_as_with_vllm_s(shape: EngineShape, seed: int) -> None:
    hold_equal(shape, turns_of(seed, shape.ranks, changes=True, pauses=False))


@pytest.mark.slow
@given(shape=shapes(), seed=SEEDS)
def test_pauses_and_emptied_caches_are_those_of_vllm_s(shape: EngineShape, seed: int) -> None:
    hold_equal(shape, turns_of(seed, shape.ranks, changes=True, pauses=True))


def test_behind_a_front_the_api_process_is_told_of_the_queues_now_and_then_and_of_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats_client, "has_front", bool)
    monkeypatch.setattr(stats_client.time, "monotonic", lambda: 1e9)  # nothing is due by time
    driven = DrivenFast(EngineShape(ranks=2, kv_blocks=40, policy="none", options={}))
    prompts = [tuple(range(300, 300 + 10 * count)) for count in (1, 2, 3)]
    driven.ask([Asked(name=f"of-{len(each)}", prompt=each, max_tokens=5) for each in prompts])

    told = []
    while driven.scheduler.has_requests():
        decision = driven.scheduler.schedule()
        report = StepReport(begin_s=0, end_s=1, epochs=None, weights=("first",) * 2)
        done = driven.computed(decision, report)
        told.append(driven.scheduler.update_from_output(decision, done))

    stats = [each.get(API_CLIENT, EngineCoreOutputs()).scheduler_stats for each in told]
    known = [each for each in stats if each is not None]
    assert all(each[FRONT_CLIENT].scheduler_stats is None for each in told if FRONT_CLIENT in each)
    while_they_run = [each is not None for each in stats[:-2]]  # then the last ends, and nothing is
    assert while_they_run == [True, *[False] * (len(told) - 3)]
    assert len(told) > 5
    assert (known[-1].num_running_reqs, known[-1].num_waiting_reqs) == (0, 0)
    assert sum(each.prefix_cache_stats.queries for each in known) == sum(map(len, prompts))
