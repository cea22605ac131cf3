"""Ranks are lost and come back: every accepted request goes on elsewhere, as if nothing was."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import EngineCoreEventType, FinishReason
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.request import Request, RequestStatus

from serving.engine.step_report import StepReport
from serving.plugin.merge import LockstepOutput
from serving.plugin.translate import TimedOutput
from tests.serving.plugin.engine_config import BLOCK_TOKENS, block_hasher
from tests.serving.plugin.lockstep_machine import (
    BLOCKS,
    Machine,
    expected_tokens,
    long_arrival,
    rank_of,
)
from tests.serving.plugin.lockstep_workload import model_output, random_workload


def test_a_lost_rank_s_request_goes_on_where_it_stopped_with_all_its_tokens() -> None:
    machine = Machine(2)
    one = long_arrival("one")
    machine.scheduler.add_request(one.request())
    for _ in range(4):
        machine.step()
    assert rank_of(machine, "one") == 0
    machine.step(lost=(0,))
    assert rank_of(machine, "one") == 1

    output = machine.step()

    assert output.state.moved_requests == 1
    (new,) = output.by_rank[1].scheduled_new_reqs
    assert new.prompt_token_ids == list(one.prompt)
    assert new.prefill_token_ids == [*one.prompt, *expected_tokens(one)[:4]]
    assert output.num_scheduled_tokens == {"one": 24}
    assert output.by_rank[0].finished_req_ids == {"one"}
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)


def test_tokens_that_a_rank_sampled_before_it_was_lost_are_kept() -> None:
    machine = Machine(2)
    one = long_arrival("one")
    machine.scheduler.add_request(one.request())
    machine.step()
    machine.step(lost=(0,), answered=True)

    assert machine.received["one"] == expected_tokens(one)[:2]
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)


def test_a_rank_that_a_spare_replaced_at_once_is_used_again_with_an_empty_cache() -> None:
    machine = Machine(1)
    one = long_arrival("one", 50)
    machine.scheduler.add_request(one.request())
    for _ in range(3):
        machine.step()
    machine.step(lost=(0,), up=(True,))
    output = machine.step()

    (new,) = output.scheduled_new_reqs
    assert new.num_computed_tokens == 0
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)


def test_nothing_is_sent_to_a_rank_until_it_is_up_again() -> None:
    machine = Machine(3)
    machine.step(lost=(1,))
    for number in range(9):
        machine.scheduler.add_request(long_arrival(f"r{number}").request())
    assert [len(rank.requests) for rank in machine.scheduler.ranks] == [5, 0, 4]

    machine.step(up=(True, True, True))
    machine.scheduler.add_request(long_arrival("next").request())
    assert rank_of(machine, "next") == 1
    machine.finish()


def test_a_rank_that_goes_down_with_its_kv_is_left_too() -> None:
    machine = Machine(2)
    one = long_arrival("one")
    machine.scheduler.add_request(one.request())
    machine.step()
    machine.step(up=(False, True))
    assert rank_of(machine, "one") == 1
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)


def test_moved_requests_queue_by_arrival_among_those_that_wait_already() -> None:
    machine = Machine(2, max_num_seqs=1)
    for name in "abcdef":
        machine.scheduler.add_request(long_arrival(name, 5, max_tokens=9).request())
    machine.step()
    assert [rank_of(machine, name) for name in "abcdef"] == [0, 1, 0, 1, 0, 1]
    machine.step(lost=(0,))

    survivor = machine.scheduler.ranks[1]
    assert [request.request_id for request in survivor.running] == ["b"]
    assert [request.request_id for request in survivor.waiting] == list("acdef")
    machine.finish()
    assert set(machine.ended) == set("abcdef")


def test_of_several_lost_ranks_the_request_that_came_first_gets_the_free_seat() -> None:
    machine = Machine(4, max_num_seqs=1)
    for name, max_tokens in (("brief", 1), ("first", 30), ("held", 30), ("short", 1)):
        machine.scheduler.add_request(long_arrival(name, max_tokens=max_tokens).request())
    machine.step()
    machine.scheduler.add_request(long_arrival("later", 60).request())
    machine.step()
    assert [rank_of(machine, name) for name in ("later", "first", "held")] == [0, 1, 2]
    machine.step(lost=(0, 1))

    assert rank_of(machine, "first") == 3
    machine.finish()


def test_moved_requests_keep_their_priority() -> None:
    machine = Machine(2, max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("a", 5), ("b", 5), ("c", 9), ("d", 9), ("e", 0), ("f", 7)):
        request = long_arrival(name, 5, max_tokens=9).request()
        request.priority = priority
        machine.scheduler.add_request(request)
    machine.step(lost=(0,))

    survivor = machine.scheduler.ranks[1]
    order = [request.priority for request in survivor.waiting]
    assert order == sorted(order)
    assert len(survivor.requests) == 6
    machine.finish()


def test_without_a_rank_that_is_up_requests_end_with_an_error_also_new_ones() -> None:
    machine = Machine(2)
    for name in "abc":
        machine.scheduler.add_request(long_arrival(name).request())
    machine.step()
    machine.step(lost=(0, 1))
    assert machine.ended == dict.fromkeys("abc", FinishReason.ERROR)

    machine.step()
    for name in "de":
        machine.scheduler.add_request(long_arrival(name).request())
    assert machine.scheduler.has_requests()
    assert machine.scheduler.get_request_counts() == (0, 2)
    assert machine.scheduler.get_num_unfinished_requests() == 2
    finished = machine.scheduler.finish_requests("d", RequestStatus.FINISHED_ABORTED)
    assert [request.request_id for request in finished] == ["d"]
    machine.step()
    assert machine.ended == dict.fromkeys("abce", FinishReason.ERROR)

    machine.step(up=(False, True))
    machine.scheduler.add_request(long_arrival("f").request())
    machine.finish()
    assert machine.received["f"] == expected_tokens(long_arrival("f"))


def test_a_request_that_came_just_before_a_rank_was_up_again_is_served() -> None:
    machine = Machine(2)
    machine.step(up=(False, False))
    machine.scheduler.add_request(long_arrival("lucky").request())
    machine.step(up=(True, False))
    assert rank_of(machine, "lucky") == 0
    machine.finish()
    assert machine.received["lucky"] == expected_tokens(long_arrival("lucky"))


def test_a_streaming_session_between_inputs_ends_with_an_error() -> None:
    machine = Machine(2)
    request = long_arrival("talk", max_tokens=1).request()
    request.resumable = True
    machine.scheduler.add_request(request)
    machine.step()
    assert request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
    machine.step(lost=(0,))

    assert machine.ended == {"talk": FinishReason.ERROR}
    assert not machine.scheduler.has_unfinished_requests()


def test_a_client_sees_one_queueing_and_a_preemption_where_a_request_moved() -> None:
    machine = Machine(2)
    request = long_arrival("one").request()
    machine.scheduler.add_request(request)
    machine.step()
    machine.step(lost=(0,))
    kinds = EngineCoreEventType

    assert [event.type for event in request.events] == [kinds.PREEMPTED]
    assert request.num_preemptions == 1


def test_a_prompt_s_log_probabilities_are_told_once() -> None:
    machine = Machine(2)
    params = SamplingParams(max_tokens=9, prompt_logprobs=0)
    request = Request("s", [5, 6, 7], params, None, block_hasher=block_hasher(BLOCK_TOKENS))
    machine.scheduler.add_request(request)
    rows = LogprobsTensors.empty_cpu(2, 1)
    told = []
    for lost in ((), (0,), ()):
        output = machine.scheduler.schedule()
        first = output.scheduled_new_reqs
        tokens = {} if lost else {"s": 9}
        result = model_output([] if lost else ["s"], tokens)
        if first:
            result.prompt_logprobs_dict = {"s": rows}
        report = StepReport(begin_s=0, end_s=1, epochs=None, lost_ranks=lost)
        answers = machine.scheduler.update_from_output(
            output, TimedOutput(**vars(result), report=report)
        )
        told += [one.new_prompt_logprobs_tensors for one in answers[0].outputs]

    assert told[0] is rows
    assert told[1:] == [None]


def test_a_grammar_goes_on_where_the_tokens_so_far_have_brought_it() -> None:
    machine = Machine(2)
    scheduler = machine.scheduler
    params = SamplingParams(max_tokens=8, structured_outputs=StructuredOutputsParams(regex="abab"))
    params.structured_outputs._backend = "xgrammar"
    request = Request("g", [3, 4, 5], params, None)
    scheduler.ranks[0].structured_output_manager.grammar_init(request)
    scheduler.add_request(request)
    assert request.structured_output_request is not None
    request.structured_output_request._grammar.result(timeout=60)

    def allowed() -> tuple[LockstepOutput, Any]:
        output = scheduler.schedule()
        bitmask = scheduler.get_grammar_bitmask(output)
        assert bitmask is not None
        return output, bitmask.grammar_bitmask.copy()

    def lowest(bitmask: Any) -> int:
        return int(np.unpackbits(bitmask.view(np.uint8), bitorder="little").argmax())

    output, before = allowed()
    scheduler.update_from_output(output, model_output(["g"], {"g": lowest(before)}))
    output, after = allowed()
    assert not np.array_equal(before, after)
    report = StepReport(begin_s=0, end_s=1, epochs=None, lost_ranks=(0,))
    silent = TimedOutput(**vars(model_output([], {})), report=report)
    scheduler.update_from_output(output, silent)
    output, again = allowed()

    assert output.by_rank[1].num_scheduled_tokens == {"g": 4}
    assert np.array_equal(again, after)


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(2, 4),
    rate=st.sampled_from([0.3, 1.0, 2.0]),
    blocks=st.sampled_from([36, BLOCKS, 300]),
    caching=st.booleans(),
    priority=st.booleans(),
)
def test_no_loss_changes_what_a_client_gets(
    seed: int, ranks: int, rate: float, blocks: int, caching: bool, priority: bool
) -> None:
    machine = Machine(
        ranks,
        blocks,
        enable_prefix_caching=caching,
        scheduling_policy="priority" if priority else "fcfs",
    )
    rng = np.random.default_rng(seed)
    up = [True] * ranks
    arrivals = {}
    aborted: set[str] = set()
    for turn in random_workload(seed, turns=30, rate=rate):
        for arrival in turn.arrivals:
            request = arrival.request()
            request.priority = int(rng.integers(3))
            machine.scheduler.add_request(request)
            arrivals[arrival.name] = arrival
        finished = machine.scheduler.finish_requests(turn.aborts, RequestStatus.FINISHED_ABORTED)
        aborted |= {request.request_id for request in finished}
        if turn.reset is not None:
            machine.scheduler.reset_prefix_cache(turn.reset)
        lost = tuple(n for n in range(ranks) if up[n] and rng.random() < 0.08)
        for number in range(ranks):
            replaced = rng.random() < 0.3
            up[number] = (up[number] and number not in lost) or replaced
        if not any(up):
            up[int(rng.integers(ranks))] = True
        machine.step(lost=lost, answered=bool(rng.integers(2)), up=tuple(up))
    machine.finish()

    assert machine.ended.keys() | aborted == arrivals.keys()
    for name, arrival in arrivals.items():
        tokens = expected_tokens(arrival)
        if name in aborted:
            assert machine.received[name] == tokens[: len(machine.received[name])]
        else:
            assert machine.received[name] == tokens, name
            assert machine.ended[name] is not FinishReason.ERROR


def test_the_losses_of_the_property_above_do_move_requests() -> None:
    machine = Machine(3)
    for number in range(12):
        machine.scheduler.add_request(long_arrival(f"r{number}", 40).request())
    for lost in ((0,), (1,), (2,)):
        machine.step()
        machine.step(lost=lost, up=tuple(number not in lost for number in range(3)))
    assert machine.moved > 12
    machine.finish()
    for number in range(12):
        assert machine.received[f"r{number}"] == expected_tokens(long_arrival(f"r{number}", 40))


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_small_order_of_losses_and_returns_ends_alike(ranks: int) -> None:
    """Each rank is lost in each of six steps, with and without its answer, back one step later."""
    for step in range(6):
        for rank in range(ranks):
            for answered in (False, True):
                machine = Machine(ranks, 40)
                arrivals = [long_arrival(f"r{n}", 30 + 40 * n, max_tokens=4) for n in range(4)]
                for arrival in arrivals:
                    machine.scheduler.add_request(arrival.request())
                for number in range(8):
                    lost = (rank,) if number == step else ()
                    up = tuple(n not in lost for n in range(ranks))
                    machine.step(lost=lost, answered=answered, up=up)
                machine.finish()
                for arrival in arrivals:
                    assert machine.received[arrival.name] == expected_tokens(arrival)
