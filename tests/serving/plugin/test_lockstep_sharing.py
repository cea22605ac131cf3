"""What ranks share out among them: priorities, the children of one request, idle steps, loads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.request import Request, RequestStatus

from serving.engine.scheduler_state import RankQueues
from serving.plugin.rank_policies import RankLoads
from tests.serving.plugin.core_request import core_request
from tests.serving.plugin.engine_config import BLOCK_TOKENS, block_hasher
from tests.serving.plugin.lockstep_machine import Machine, long_arrival, rank_of
from tests.serving.plugin.lockstep_workload import (
    chosen_token,
    computed,
    model_output,
    random_workload,
)


def urgent(name: str, priority: int, tokens: int = 5, *, max_tokens: int = 9) -> Request:
    request = long_arrival(name, tokens, max_tokens=max_tokens).request()
    request.priority = priority
    return request


def test_each_rank_takes_what_waits_by_priority_and_then_by_arrival() -> None:
    machine = Machine(2, max_num_seqs=1, scheduling_policy="priority")
    for name, priority in zip("abcdefgh", (5, 5, 7, 7, 9, 9, 0, 1), strict=True):
        machine.scheduler.add_request(urgent(name, priority))
    order: list[str] = []
    while machine.scheduler.has_requests():
        order += [data.req_id for data in machine.step().scheduled_new_reqs]

    # One seat each: the two most urgent start first, though they came last.
    assert order == ["g", "h", "a", "b", "c", "d", "e", "f"]


def test_a_rank_full_of_what_is_less_urgent_is_as_good_as_an_empty_one() -> None:
    machine = Machine(2, max_num_seqs=3, scheduling_policy="priority")
    machine.scheduler.add_request(urgent("running", 5, 30, max_tokens=90))
    machine.step()
    for rank, name in ((1, "low-1"), (1, "low-2"), (1, "low-3"), (1, "low-4")):
        machine.scheduler.ranks[rank].add_request(urgent(name, 9, 200))
    machine.scheduler._loads.forget()

    machine.scheduler.add_request(urgent("high", 1))
    assert rank_of(machine, "high") == 1
    machine.scheduler.add_request(urgent("lowest", 10))
    assert rank_of(machine, "lowest") == 0


def test_without_priorities_what_came_before_counts_whatever_it_says() -> None:
    machine = Machine(2)
    machine.scheduler.add_request(urgent("first", 9, 100))
    machine.scheduler.add_request(urgent("second", 1, 50))
    machine.scheduler.add_request(urgent("third", 0, 5))

    assert [rank_of(machine, name) for name in ("first", "second", "third")] == [0, 1, 1]


def test_a_request_goes_where_it_can_start_rather_than_where_little_waits() -> None:
    machine = Machine(2, max_num_seqs=2)
    for name, tokens in (("a", 4), ("b", 90), ("c", 4)):
        machine.scheduler.add_request(long_arrival(name, tokens).request())
    assert [rank_of(machine, name) for name in "abc"] == [0, 1, 0]
    machine.scheduler.add_request(long_arrival("d", 4).request())

    assert rank_of(machine, "d") == 1


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(1, 4),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_loads_that_are_kept_up_are_those_that_are_counted(
    seed: int, ranks: int, policy: str
) -> None:
    machine = Machine(ranks, scheduling_policy=policy)
    rng = np.random.default_rng(seed)
    probe = urgent("probe", 1)
    for turn in random_workload(seed, turns=12, rate=1.5):
        for arrival in turn.arrivals:
            request = arrival.request()
            request.priority = int(rng.integers(3))
            machine.scheduler.add_request(request)
            machine.scheduler.finish_requests(turn.aborts, RequestStatus.FINISHED_ABORTED)
            kept = machine.scheduler._loads.before(probe)
            counted = RankLoads(machine.scheduler.ranks, machine.scheduler._roles).before(probe)
            slow = [
                sum(
                    one.num_tokens
                    for one in rank.requests.values()
                    if one.status == RequestStatus.RUNNING or policy == "fcfs" or one.priority <= 1
                )
                for rank in machine.scheduler.ranks
            ]
            assert np.array_equal(kept, counted)
            assert kept[0].tolist() == slow
        lost = tuple(np.flatnonzero(rng.random(ranks) < 0.1).tolist())
        machine.step(lost=lost, up=(True,) * ranks)


def test_ranks_without_tokens_take_part_in_the_steps_of_others_and_are_counted() -> None:
    machine = Machine(3)
    assert machine.step().state.empty_rank_steps == 0  # nobody works
    machine.scheduler.add_request(long_arrival("a", 5, max_tokens=3).request())
    assert [machine.step().state.empty_rank_steps for _ in range(2)] == [2, 4]
    machine.step(up=(True, True, False))
    assert machine.scheduler.empty_steps.tolist() == [0, 3, 3]

    machine.scheduler.add_request(long_arrival("b", 5, max_tokens=2).request())
    assert machine.step().state.empty_rank_steps == 7  # a rank that is down takes no part
    assert machine.scheduler.empty_steps.tolist() == [0, 4, 3]


def test_a_decision_says_how_each_rank_stands() -> None:
    machine = Machine(2, max_num_seqs=1)
    for name, tokens in (("a", 40), ("b", 5), ("c", 5)):
        machine.scheduler.add_request(long_arrival(name, tokens).request())

    assert machine.step().state.rank_states == (
        RankQueues(running=1, waiting=0, kv_blocks_used=3),
        RankQueues(running=1, waiting=1, kv_blocks_used=1),
    )


def test_the_children_of_one_request_run_on_several_ranks_and_come_back_as_one() -> None:
    machine = Machine(3)
    scheduler = machine.scheduler
    params = SamplingParams(n=4, max_tokens=6, ignore_eos=True, detokenize=False)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    parent_request = core_request("four", range(30, 50), params)
    parent = ParentRequest(parent_request)
    front = OutputProcessor(None, log_stats=False)
    prompt = parent_request.prompt_token_ids
    assert prompt is not None
    for index in range(4):
        name, child_params = parent.get_child_info(index)
        child = core_request(name, range(30, 50), child_params, external_req_id="four")
        front.add_request(child, None, parent, index)
        scheduler.add_request(Request.from_engine_core_request(child, block_hasher(BLOCK_TOKENS)))
    assert {rank_of(machine, f"{index}_four") for index in range(4)} == {0, 1, 2}

    lengths = {f"{index}_four": len(prompt) for index in range(4)}
    finals = []
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        done = computed(output, lengths, list(output.num_scheduled_tokens))
        tokens = {name: chosen_token(name, lengths[name]) for name in done}
        names = list(output.num_scheduled_tokens)
        for results in scheduler.update_from_output(output, model_output(names, tokens)).values():
            finals += front.process_outputs(results.outputs).request_outputs

    (final,) = finals
    assert final.request_id == "four"
    assert final.finished
    assert [completion.index for completion in final.outputs] == [0, 1, 2, 3]
    for completion in final.outputs:
        name = f"{completion.index}_four"
        ends = range(len(prompt) + 1, len(prompt) + 7)
        assert list(completion.token_ids) == [chosen_token(name, end) for end in ends]
