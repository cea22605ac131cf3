"""Requests of the compiled schedulers that are over their deadline: cases by hand."""

import numpy as np

from loadgen.workloads.traffic import Traffic
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.scheduler_arrays import NONE
from serving.traffic.engine_limits import EngineLimits

LIMITS = EngineLimits(
    max_num_batched_tokens=64,
    max_num_seqs=2,
    kv_blocks_per_rank=20,
    block_tokens=16,
    prefill_policy="none",
)


def schedulers(*deadlines_ns: int) -> LockstepSchedulers:
    """One rank of two seats; requests of 20 tokens, two blocks, come at once."""
    requests = len(deadlines_ns)
    traffic = Traffic(
        arrival_s=np.zeros(requests),
        prompt_tokens=np.full(requests, 20),
        output_tokens=np.full(requests, 9),
    )
    deadline_ns = np.array(deadlines_ns)
    return LockstepSchedulers.replicas(traffic, LIMITS, 1, 1, deadline_ns=deadline_ns)[0]


def test_what_runs_or_waits_ends_at_its_deadline_and_others_take_its_seat() -> None:
    made = schedulers(5, NONE, 7, 5, NONE)
    made.admit(0, 0)
    made.schedule(now_ns=0)
    made.give_tokens(4)
    assert made.abort_due(4).tolist() == []
    assert made.queues[0].kv_blocks_used == 4

    assert made.abort_due(6).tolist() == [0, 3]
    assert made.requests == 3
    assert made.queues[0].kv_blocks_used == 2
    made.schedule(now_ns=0)
    assert made.arrays.rows["request"][:2].tolist() == [1, 2]

    # The deadline of request 2 stands behind an earlier one that is over.
    assert made.abort_due(7).tolist() == [2]
    assert made.abort_due(10**9).tolist() == []


def test_what_has_no_rank_yet_ends_too() -> None:
    made = schedulers(5, 9)
    made.put(0, begins=False)
    made.put(1, begins=False)
    assert made.abort_due(5).tolist() == [0]
    assert made.requests == 1
    made.take_inbox()
    assert made.schedule(now_ns=0).new_tokens.tolist() == [20]
