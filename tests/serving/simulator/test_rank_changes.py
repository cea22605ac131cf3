"""Ranks of the compiled schedulers leave and come back: cases by hand."""

import numpy as np

from loadgen.workloads.traffic import Traffic
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.traffic.engine_limits import EngineLimits

LIMITS = EngineLimits(
    max_num_batched_tokens=64,
    max_num_seqs=2,
    kv_blocks_per_rank=20,
    block_tokens=16,
    prefill_policy="none",
)


def schedulers(*, ranks: int, requests: int, output_tokens: int = 3) -> LockstepSchedulers:
    """Requests of 10 tokens that all come at once."""
    traffic = Traffic(
        arrival_s=np.zeros(requests),
        prompt_tokens=np.full(requests, 10),
        output_tokens=np.full(requests, output_tokens),
    )
    made = LockstepSchedulers.replicas(traffic, LIMITS, ranks, 1)[0]
    assert made.admit(0, 0) == requests
    return made


def step(made: LockstepSchedulers, silent: tuple[int, ...] = ()) -> list[tuple[int, int, int, int]]:
    """Run a step; returns its rows: rank, request, new tokens, context."""
    rows = len(made.schedule(now_ns=0).rank)
    done = made.arrays.rows[:rows][["rank", "request", "new", "context"]].tolist()
    made.give_tokens(1, silent)
    return done


def states(*flags: bool) -> np.ndarray:
    return np.array(flags, dtype=np.bool_)


def test_a_lost_rank_s_request_is_computed_again_elsewhere_with_its_tokens() -> None:
    made = schedulers(ranks=2, requests=2)
    assert step(made) == [(0, 0, 10, 0), (1, 1, 10, 0)]
    # Rank 0 is lost in the second step, which gives request 1 its second token, and 0 none.
    assert step(made, silent=(0,)) == [(0, 0, 1, 10), (1, 1, 1, 10)]
    made.set_ranks(states(False, True), states(False, False))
    assert made.move([0]) == []

    assert step(made) == [(1, 1, 1, 11), (1, 0, 11, 0)]
    assert made.arrays.requests["preemptions"].tolist() == [1, 0]
    assert made.arrays.requests["tokens_left"].tolist() == [1, 0]
    assert made.requests == 1


def test_requests_wait_in_order_while_all_ranks_are_closed() -> None:
    made = schedulers(ranks=2, requests=3)
    made.set_ranks(states(False, True), states(False, True))
    assert made.move() == []
    assert made.turned_away == 2
    assert made.requests == 3
    assert [row[1] for row in step(made)] == [1], "a closed rank keeps its own"

    made.set_ranks(states(True, True), states(False, True))
    made.move()
    assert made.turned_away == 0
    assert [row[:2] for row in step(made)] == [(0, 0), (0, 2), (1, 1)]


def test_requests_end_in_error_when_no_rank_is_up() -> None:
    made = schedulers(ranks=1, requests=2)
    step(made)
    made.set_ranks(states(False), states(False))
    assert made.move([0]) == [0, 1]
    assert made.requests == 0
    assert step(made) == []
