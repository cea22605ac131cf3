"""Engines that go ahead until a router looks, or turns come, serve as step by step.

Step by step the live router's own rules choose (`serving.policy.routing`), one request at a time.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.units import NS_PER_S
from loadgen.workloads.traffic import PromptBlocks, Sessions, Traffic
from serving.policy.routing import ROUTERS
from serving.simulator import (
    ReplicaSet,
    SchedulerLimits,
    SimulatedDeployment,
    TimedCall,
    simulate,
)
from serving.simulator.scheduler_arrays import NEVER_NS
from serving.simulator.session_pauses import SHORTEST_NS, pause_ns
from serving.wire.control_call import InjectRequest

BLOCK = SchedulerLimits().block_tokens
TURNS = 4
LOSS = TimedCall(at_s=0.5, call=InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0)))


def engine(chips: int, kv_blocks: int) -> SimulatedDeployment:
    found = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=chips, tp=1, ep=chips, lnc=2),
        schedulers=SchedulerLimits(
            max_num_seqs=4, max_num_batched_tokens=256, prefill_policy="balanced:32:64:256"
        ),
    )
    return replace(found, limits=replace(found.limits, kv_blocks_per_rank=kv_blocks))


def drawn(
    seed: int, *, sessions: int, rate_per_s: float, turns: int, think_s: float, cached: bool
) -> Traffic:
    """Sessions of up to so many turns, some with two calls at once, which find what one of six
    system prompts and the turns before them have left.
    """
    random = np.random.default_rng(seed)
    after, think, ends, names, begun = [], [], [], [], []
    arrival_s = np.sort(random.uniform(0, sessions / rate_per_s, sessions))
    for session, begin_s in enumerate(arrival_s):
        blocks = [[int(random.integers(6)), int(random.integers(1, 9))]]
        before = -1
        for turn in range(int(random.integers(1, turns + 1))):
            forks = 1 + int(turn > 0 and random.random() < 0.3)
            own = [[1_000 + len(after) + fork, int(random.integers(1, 5))] for fork in range(forks)]
            for each in own:
                pieces = [*blocks, each]
                names.append([name for name, _ in pieces])
                ends.append(np.cumsum([count for _, count in pieces]) * BLOCK)
                after.append(before)
                think.append(think_s * random.integers(1, 4) if turn else 0.0)
                begun.append(begin_s)
            blocks.append(own[-1])
            before = len(after) - 1
        del session
    prompts = np.array([int(each[-1]) for each in ends]) + random.integers(0, BLOCK, len(ends))
    begin = np.append(0, np.cumsum([len(each) for each in names]))
    return Traffic(
        arrival_s=np.array(begun),
        prompt_tokens=prompts,
        output_tokens=random.integers(1, 25, len(ends)),
        blocks=PromptBlocks(
            names=np.concatenate([np.array(each) for each in names]),
            end_tokens=np.concatenate(ends),
            begin=begin,
        )
        if cached
        else None,
        sessions=Sessions(after=np.array(after), think_s=np.array(think)) if turns > 1 else None,
    )


def check_alike(pools: SimulatedDeployment, traffic: Traffic) -> None:
    """But where engines for prompts go ahead of those that read their blocks at one moment: what
    another prompt takes in that moment is beside these, not in their place.
    """
    ahead = simulate(pools, traffic, logs=False).served
    one_by_one = simulate(pools, traffic, on_step=lambda *_, **__: None).served
    assert ahead.finished.all()
    assert ahead.steps == one_by_one.steps
    for field in ("arrival_s", "first_token_s", "last_token_s", "hits", "preemptions"):
        ours, theirs = (getattr(each, field) for each in (ahead, one_by_one))
        np.testing.assert_array_equal(ours, theirs, err_msg=field)
    if pools.prefill is None:
        assert ahead.kv_blocks_used_max == one_by_one.kv_blocks_used_max
    else:
        assert ahead.kv_blocks_used_max >= one_by_one.kv_blocks_used_max
    assert ahead.empty_rank_steps == one_by_one.empty_rank_steps
    assert ahead.joules == pytest.approx(one_by_one.joules, rel=1e-9)


@pytest.mark.long
@given(
    seed=st.integers(0, 1_000),
    rate_per_s=st.sampled_from([5.0, 60.0, 400.0]),
    count=st.integers(1, 3),
    router=st.sampled_from(sorted(ROUTERS)),
    kv_blocks=st.sampled_from([40, 120, 4_000]),
    turns=st.sampled_from([1, TURNS]),
    think_s=st.sampled_from([0.1, 2.0]),
    cached=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_engines_that_go_ahead_serve_as_step_by_step(
    seed: int,
    rate_per_s: float,
    count: int,
    router: str,
    kv_blocks: int,
    turns: int,
    think_s: float,
    cached: bool,
) -> None:
    traffic = drawn(
        seed, sessions=30, rate_per_s=rate_per_s, turns=turns, think_s=think_s, cached=cached
    )
    replicas = ReplicaSet(count=count, router=router)
    check_alike(replace(engine(2, kv_blocks), replicas=replicas), traffic)


@pytest.mark.long
@given(
    seed=st.integers(0, 1_000),
    rate_per_s=st.sampled_from([5.0, 60.0]),
    counts=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    router=st.sampled_from(sorted(ROUTERS)),
    turns=st.sampled_from([1, TURNS]),
    prefill_blocks=st.sampled_from([100, 4_000]),
)
@settings(max_examples=8, deadline=None)
def test_units_that_go_ahead_serve_as_step_by_step(
    seed: int,
    rate_per_s: float,
    counts: tuple[int, int],
    router: str,
    turns: int,
    prefill_blocks: int,
) -> None:
    prefills = ReplicaSet(count=counts[1], router=router)
    pools = replace(
        engine(2, 4_000),
        replicas=ReplicaSet(count=counts[0], router="least-loaded"),
        prefill=replace(engine(1, prefill_blocks), replicas=prefills),
    )
    traffic = drawn(seed, sessions=20, rate_per_s=rate_per_s, turns=turns, think_s=0.5, cached=True)
    check_alike(pools, traffic)


@pytest.mark.parametrize(
    ("think_s", "how"),
    [(0.99 * SHORTEST_NS / NS_PER_S, {}), (1.0, {"timeout_s": 9.0}), (1.0, {"calls": [LOSS]})],
)
def test_tokens_are_kept_where_turns_may_come_at_once(think_s: float, how: dict[str, Any]) -> None:
    traffic = drawn(1, sessions=3, rate_per_s=5.0, turns=TURNS, think_s=think_s, cached=False)
    with pytest.raises(ConfigError, match="logs"):
        simulate(engine(2, 4_000), traffic, logs=False, **how)


def test_the_shortest_pause_counts() -> None:
    traffic = drawn(1, sessions=3, rate_per_s=5.0, turns=TURNS, think_s=0.2, cached=False)
    assert traffic.sessions is not None
    assert pause_ns(traffic) == 200_000_000
    at_once = replace(traffic.sessions, think_s=np.zeros(len(traffic)))
    assert pause_ns(replace(traffic, sessions=at_once)) == 0
    assert pause_ns(replace(traffic, sessions=None)) == NEVER_NS
