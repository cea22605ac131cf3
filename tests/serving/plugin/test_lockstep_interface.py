"""What the engine asks of LockstepScheduler besides steps: routing, grammar, time, control."""

from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from emulator.sim.epochs import EpochMap
from serving.engine.step_report import StepReport
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput, merge_stats
from serving.plugin.translate import TimedOutput
from tests.serving.plugin.engine_config import (
    BLOCK_TOKENS,
    block_hasher,
    engine_config,
    kv_pool,
)
from tests.serving.plugin.lockstep_workload import Arrival, model_output


def lockstep(
    ranks: int, *, blocks: int = 200, log_stats: bool = False, **arguments: Any
) -> LockstepScheduler:
    config = engine_config(ranks, **arguments)
    return LockstepScheduler(
        vllm_config=config,
        kv_cache_config=kv_pool(config, blocks),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        log_stats=log_stats,
    )


def arrival(name: str, tokens: int, *, first: int = 3, max_tokens: int = 20) -> Arrival:
    return Arrival(name=name, prompt=tuple(range(first, first + tokens)), max_tokens=max_tokens)


def step(scheduler: LockstepScheduler, token: int = 7) -> LockstepOutput:
    """Schedule and give every request whose context is complete the same token."""
    output = scheduler.schedule()
    done = {
        name: token
        for rank, part in zip(scheduler.ranks, output.by_rank, strict=True)
        for name in part.num_scheduled_tokens
        if rank.requests[name].num_computed_tokens == rank.requests[name].num_tokens
    }
    scheduler.update_from_output(output, model_output(list(output.num_scheduled_tokens), done))
    return output


def ranks_of(scheduler: LockstepScheduler, *names: str) -> list[int]:
    found = {name: n for n, rank in enumerate(scheduler.ranks) for name in rank.requests}
    return [found[name] for name in names]


def test_requests_without_a_shared_prefix_go_to_the_rank_with_the_fewest_tokens() -> None:
    scheduler = lockstep(3)
    lengths = [50, 10, 20, 5, 5, 5, 30]
    for number, tokens in enumerate(lengths):
        scheduler.add_request(arrival(f"r{number}", tokens, first=3 + 100 * number).request())

    # 50 | 10 | 20, then 5 on the 10, 5 on the 15, now 20 and 20: the lower number, 25 | 20.
    assert ranks_of(scheduler, *(f"r{n}" for n in range(7))) == [0, 1, 2, 1, 1, 1, 2]


def test_a_shared_prefix_weighs_as_much_as_the_load_it_saves_and_is_then_really_hit() -> None:
    scheduler = lockstep(3)
    shared = tuple(range(500, 500 + 3 * BLOCK_TOKENS))
    scheduler.add_request(arrival("filler", 3).request())
    scheduler.add_request(Arrival(name="first", prompt=(*shared, 5), max_tokens=20).request())
    scheduler.add_request(arrival("other", 2, first=300).request())
    assert ranks_of(scheduler, "filler", "first", "other") == [0, 1, 2]
    step(scheduler)
    for name in ("second", "third"):
        scheduler.add_request(Arrival(name=name, prompt=(*shared, 6, 7), max_tokens=2).request())

    # Each now has a token more: 50 less the hit of 48 is below 3 and 4; with "second" it is 52.
    assert ranks_of(scheduler, "second", "third") == [1, 2]
    new = {data.req_id: data for data in step(scheduler).scheduled_new_reqs}
    assert new["second"].num_computed_tokens == 3 * BLOCK_TOKENS
    assert new["third"].num_computed_tokens == 0


def test_a_hit_of_one_block_does_not_send_everything_to_one_rank() -> None:
    scheduler = lockstep(4, blocks=900)
    shared = tuple(range(500, 500 + BLOCK_TOKENS))
    for number in range(40):
        own = tuple(range(3 + 10 * number, 53 + 10 * number))
        one = Arrival(name=f"r{number}", prompt=(*shared, *own), max_tokens=20)
        scheduler.add_request(one.request())
        step(scheduler)

    on_each = [len(rank.requests) for rank in scheduler.ranks]
    assert max(on_each) - min(on_each) <= 2


def test_the_rank_is_the_one_that_then_has_the_fewest_tokens_by_its_own_cache_manager() -> None:
    scheduler = lockstep(4)
    rng = np.random.default_rng(3)
    prefix = rng.integers(3, 1000, 6 * BLOCK_TOKENS).tolist()
    hits_seen = set()
    for number in range(60):
        cut = int(rng.integers(0, len(prefix)))
        own = rng.integers(3, 1000, 8).tolist()
        one = Arrival(name=f"r{number}", prompt=(*prefix[:cut], *own), max_tokens=3)
        request = one.request()
        hits = [rank.kv_cache_manager.get_computed_blocks(request)[1] for rank in scheduler.ranks]
        loads = [sum(r.num_tokens for r in rank.requests.values()) for rank in scheduler.ranks]
        scheduler.add_request(request)
        (chosen,) = ranks_of(scheduler, request.request_id)
        left = [load - hit for hit, load in zip(hits, loads, strict=True)]
        assert left[chosen] == min(left)
        hits_seen.add(hits[chosen])
        step(scheduler)

    assert len(hits_seen) > 3


def cached_on_two_ranks() -> LockstepScheduler:
    """Rank 0 has three blocks of a text and the higher load, rank 1 the first two of them."""
    scheduler = lockstep(2)
    text = tuple(range(500, 500 + 3 * BLOCK_TOKENS))
    scheduler.add_request(Arrival(name="a", prompt=(*text, 5), max_tokens=20).request())
    scheduler.add_request(
        Arrival(name="b", prompt=(*text[: 2 * BLOCK_TOKENS], 6), max_tokens=20).request()
    )
    step(scheduler)
    assert ranks_of(scheduler, "a", "b") == [0, 1]
    return scheduler


def test_a_hit_counts_only_as_far_as_the_last_token_has_to_be_computed_anyway() -> None:
    scheduler = cached_on_two_ranks()
    text = tuple(range(500, 500 + 3 * BLOCK_TOKENS))
    scheduler.add_request(Arrival(name="whole", prompt=text, max_tokens=2).request())
    assert ranks_of(scheduler, "whole") == [1]  # two blocks on either: the lower load
    scheduler.add_request(Arrival(name="more", prompt=(*text, 7), max_tokens=2).request())
    assert ranks_of(scheduler, "more") == [0]


def test_a_request_that_does_not_read_the_cache_goes_by_load_alone() -> None:
    scheduler = cached_on_two_ranks()
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)  # every prompt token is computed
    prompt = [*range(500, 500 + 3 * BLOCK_TOKENS), 7]
    hasher = block_hasher(BLOCK_TOKENS)
    scheduler.add_request(Request("scored", prompt, params, None, block_hasher=hasher))

    assert ranks_of(scheduler, "scored") == [1]


def test_an_id_that_comes_again_after_its_end_is_a_new_request() -> None:
    scheduler = lockstep(2)
    scheduler.add_request(arrival("again", 20, max_tokens=1).request())
    step(scheduler)
    assert scheduler.get_num_unfinished_requests() == 0
    scheduler.add_request(arrival("filler", 3, first=300).request())
    scheduler.add_request(arrival("again", 8, first=600, max_tokens=1).request())
    assert ranks_of(scheduler, "filler", "again") == [0, 1]

    output = step(scheduler)

    assert output.num_scheduled_tokens == {"filler": 3, "again": 8}
    assert output.finished_req_ids == {"again"}


@pytest.mark.parametrize("ids", ["b", ["b"], iter(["b", "nobody"]), ("b", "b")])
def test_ids_to_finish_may_come_as_one_name_or_any_iterable(ids: Any) -> None:
    scheduler = lockstep(3)
    for name in "abc":
        scheduler.add_request(arrival(name, 5).request())

    finished = scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    assert [request.request_id for request in finished] == ["b"]
    assert scheduler.get_num_unfinished_requests() == 2


def test_none_finishes_everything_on_all_ranks() -> None:
    scheduler = lockstep(3)
    for name in "abcd":
        scheduler.add_request(arrival(name, 5).request())
    step(scheduler)

    finished = scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)

    assert sorted(request.request_id for request in finished) == list("abcd")
    assert scheduler.get_request_counts() == (0, 0)
    assert step(scheduler).finished_req_ids == set("abcd")
    assert not scheduler.has_requests()


def test_a_pause_holds_new_requests_on_every_rank_and_running_ones_only_when_told() -> None:
    scheduler = lockstep(2)
    for name in "ab":
        scheduler.add_request(arrival(name, 5).request())
    step(scheduler)
    for name in "cd":
        scheduler.add_request(arrival(name, 5).request())

    scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1}
    assert scheduler.get_request_counts() == (2, 2)
    assert scheduler.get_num_unfinished_requests() == 2

    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert scheduler.pause_state is PauseState.PAUSED_ALL
    assert step(scheduler).num_scheduled_tokens == {}
    assert scheduler.get_num_unfinished_requests() == 0

    scheduler.set_pause_state(PauseState.UNPAUSED)
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1, "c": 5, "d": 5}


def test_a_reset_needs_every_rank_idle_or_the_word_to_preempt() -> None:
    scheduler = lockstep(2)
    shared = tuple(range(500, 500 + 2 * BLOCK_TOKENS))
    scheduler.add_request(Arrival(name="a", prompt=(*shared, 5), max_tokens=20).request())
    step(scheduler)

    assert scheduler.reset_prefix_cache() is False
    assert scheduler.reset_prefix_cache(reset_running_requests=True) is True
    assert scheduler.get_request_counts() == (0, 1)
    scheduler.add_request(Arrival(name="b", prompt=(*shared, 6), max_tokens=20).request())
    assert ranks_of(scheduler, "a", "b") == [0, 1]  # nothing to hit any more: the idle rank
    output = step(scheduler)
    assert output.scheduled_cached_reqs.resumed_req_ids == {"a"}
    assert output.num_scheduled_tokens == {"a": len(shared) + 2, "b": len(shared) + 1}


def test_the_share_of_kv_in_use_is_that_of_all_ranks() -> None:
    scheduler = lockstep(4, blocks=101)  # one block of each pool is vLLM's null block
    scheduler.add_request(arrival("a", 3 * BLOCK_TOKENS).request())
    step(scheduler)

    assert scheduler.get_kv_cache_usage() == pytest.approx(3 / 400)


def test_an_engine_without_requests_steps_once_and_then_rests() -> None:
    scheduler = lockstep(2)
    assert scheduler.has_requests()
    assert not scheduler.has_unfinished_requests()
    step(scheduler)
    assert not scheduler.has_requests()


def test_a_step_continues_when_the_one_before_left_work() -> None:
    scheduler = lockstep(2)
    assert not step(scheduler).continues
    scheduler.add_request(arrival("a", 5, max_tokens=2).request())
    assert not step(scheduler).continues
    assert step(scheduler).continues
    scheduler.add_request(arrival("b", 5, max_tokens=2).request())
    assert not step(scheduler).continues


def test_a_step_after_one_without_tokens_begins_at_the_present() -> None:
    scheduler = lockstep(2)
    scheduler.add_request(arrival("held", 5).request())
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    held = scheduler.schedule()
    scheduler.set_pause_state(PauseState.UNPAUSED)  # while the engine waits for the empty step
    scheduler.update_from_output(held, model_output([], {}))
    first = step(scheduler)

    assert held.total_num_scheduled_tokens == 0
    assert first.total_num_scheduled_tokens == 5
    assert not first.continues
    assert step(scheduler).continues


def test_without_stats_none_are_made_and_with_them_they_are_of_all_ranks() -> None:
    quiet = lockstep(2)
    quiet.add_request(arrival("a", 5).request())
    output = quiet.schedule()
    results = quiet.update_from_output(output, model_output(["a"], {"a": 7}))
    assert quiet.make_stats() is None
    assert results[0].scheduler_stats is None

    loud = lockstep(2, log_stats=True)
    for name in "abc":
        loud.add_request(arrival(name, 5).request())
    loud.schedule()
    stats = loud.make_stats()
    assert stats is not None
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (3, 0)


def test_stats_of_ranks_are_sums_and_a_share_is_a_mean() -> None:
    parts = [
        SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=2,
            num_skipped_waiting_reqs=3,
            kv_cache_usage=usage,
            prefix_cache_stats=PrefixCacheStats(
                reset=reset,
                requests=1,
                queries=50,
                hits=32,
                preempted_requests=4,
                preempted_queries=7,
                preempted_hits=5,
            ),
        )
        for running, usage, reset in ((1, 0.25, False), (6, 0.75, True), (0, 0.5, False))
    ]

    merged = merge_stats(parts, 3)

    assert (merged.num_running_reqs, merged.num_waiting_reqs) == (7, 6)
    assert merged.num_skipped_waiting_reqs == 9
    assert merged.kv_cache_usage == 0.5
    assert merged.prefix_cache_stats == PrefixCacheStats(
        reset=True,
        requests=3,
        queries=150,
        hits=96,
        preempted_requests=12,
        preempted_queries=21,
        preempted_hits=15,
    )


def constrained(name: str, regex: str, length: int) -> Request:
    params = SamplingParams(max_tokens=8, structured_outputs=StructuredOutputsParams(regex=regex))
    params.structured_outputs._backend = "xgrammar"
    return Request(name, list(range(3, 3 + length)), params, None)


def test_each_rank_s_grammar_rows_are_those_of_a_bare_scheduler() -> None:
    scheduler = lockstep(3)
    plans = [("a", "[0-9]+", 4), ("b", "yes|no", 9), ("c", "x[ab]*", 6), ("d", "[A-Z]{3}", 5)]
    requests = [constrained(*plan) for plan in plans]
    for request in requests:
        scheduler.ranks[0].structured_output_manager.grammar_init(request)
        scheduler.add_request(request)
    for request in requests:  # compiled in a thread of vLLM's
        assert request.structured_output_request is not None
        future = request.structured_output_request._grammar
        if hasattr(future, "result"):
            future.result(timeout=60)
    scheduler.add_request(arrival("free", 3).request())
    output = scheduler.schedule()
    merged = scheduler.get_grammar_bitmask(output)

    assert output.has_structured_output_requests
    assert merged is not None
    assert sorted(merged.structured_output_request_ids) == list("abcd")
    assert len(set(ranks_of(scheduler, *"abcd"))) == 3
    assert merged.grammar_bitmask.shape[0] == 4
    for row, name in zip(merged.grammar_bitmask, merged.structured_output_request_ids, strict=True):
        (rank,) = ranks_of(scheduler, name)
        alone = Scheduler.get_grammar_bitmask(scheduler.ranks[rank], output.by_rank[rank])
        assert alone is not None
        place = alone.structured_output_request_ids.index(name)
        assert np.array_equal(row, alone.grammar_bitmask[place])
    assert len({row.tobytes() for row in merged.grammar_bitmask}) == 4


def test_a_step_without_constrained_requests_has_no_bitmask() -> None:
    scheduler = lockstep(2)
    scheduler.add_request(arrival("a", 5).request())
    output = scheduler.schedule()

    assert not output.has_structured_output_requests
    assert scheduler.get_grammar_bitmask(output) is None


def timed(output: ModelRunnerOutput, report: StepReport) -> TimedOutput:
    return TimedOutput(**vars(output), report=report)


def epochs(dilation: float) -> EpochMap | None:
    """A clock that is at 0 when the system's monotonic one is at 100 s; virtual at 0."""
    return EpochMap.at(now_ns=0, wall_ns=100 * 10**9, dilation=dilation) if dilation else None


@pytest.mark.parametrize(("dilation", "queued_s"), [(4.0, 2.5), (0.0, 4.0)])
def test_events_and_outputs_carry_the_emulated_times_of_the_report(
    dilation: float, queued_s: float
) -> None:
    scheduler = lockstep(2, log_stats=True)
    request = arrival("a", 5, max_tokens=1).request()
    scheduler.add_request(request)
    (event,) = request.events
    event.timestamp = 110.0  # 10 wall seconds after emulated zero
    report = StepReport(begin_s=4.0, end_s=4.5, epochs=epochs(dilation))

    output = scheduler.schedule()
    results = scheduler.update_from_output(output, timed(model_output(["a"], {"a": 9}), report))

    (outputs,) = results.values()
    assert outputs.timestamp == 4.5
    (one,) = outputs.outputs
    stamped = {event.type: event.timestamp for event in one.events or ()}
    assert stamped == {EngineCoreEventType.QUEUED: queued_s, EngineCoreEventType.SCHEDULED: 4.0}
    stats = outputs.scheduler_stats
    assert stats is not None
    assert stats.running_lora_adapters == {}, "what is ours does not travel in what is vLLM's"


def test_a_request_is_never_queued_after_the_step_that_takes_it_begins() -> None:
    scheduler = lockstep(1, log_stats=True)
    request = arrival("a", 5, max_tokens=1).request()
    scheduler.add_request(request)
    (event,) = request.events
    event.timestamp = 300.0  # emulated 50, though the step is laid out from 4 on
    report = StepReport(begin_s=4.0, end_s=4.5, epochs=epochs(4.0))
    output = scheduler.schedule()
    results = scheduler.update_from_output(output, timed(model_output(["a"], {"a": 9}), report))

    (one,) = results[0].outputs
    assert [event.timestamp for event in one.events or ()] == [4.0, 4.0]


def test_a_request_that_waits_was_queued_by_the_begin_of_the_step_that_it_came_to() -> None:
    scheduler = lockstep(1, log_stats=True, max_num_seqs=1)
    first, second = (arrival(name, 5, max_tokens=1).request() for name in "ab")
    for request in (first, second):
        scheduler.add_request(request)
        request.events[0].timestamp = 300.0  # emulated 50: the host's time between two steps
    queued_s = []
    for begin_s, name in ((4.0, "a"), (60.0, "b")):
        report = StepReport(begin_s=begin_s, end_s=begin_s + 0.5, epochs=epochs(4.0))
        output = scheduler.schedule()
        results = scheduler.update_from_output(
            output, timed(model_output([name], {name: 9}), report)
        )
        (one,) = results[0].outputs
        assert one.request_id == name
        queued_s.append((one.events or ())[0].timestamp)

    assert queued_s == [4.0, 4.0]


def test_a_prompt_of_several_steps_is_scheduled_when_the_first_of_them_begins() -> None:
    scheduler = lockstep(2, log_stats=True)
    request = arrival("a", 150, max_tokens=4).request()
    scheduler.add_request(request)
    (event,) = request.events
    event.timestamp = 102.0  # emulated 0.5
    stamped = []
    for number in range(5):
        begin_s = 1.0 + number
        report = StepReport(
            begin_s=begin_s,
            end_s=begin_s + 1.0,
            epochs=epochs(4.0),
        )
        output = scheduler.schedule()
        done = {} if number < 2 else {"a": 9}
        results = scheduler.update_from_output(output, timed(model_output(["a"], done), report))
        for one in results[0].outputs:
            stamped.append((results[0].timestamp, [e.timestamp for e in one.events or ()]))

    # 150 tokens are chunks of 64, 64 and 22: the first token comes with the third step.
    assert stamped == [(4.0, [0.5, 1.0]), (5.0, []), (6.0, [])]


def test_a_resumed_request_s_events_are_of_the_step_that_takes_it_again() -> None:
    scheduler = lockstep(1, log_stats=True)
    scheduler.add_request(arrival("a", 5, max_tokens=9).request())
    times = iter(range(1, 9))

    def turn() -> list[tuple[EngineCoreEventType, float]]:
        begin_s = float(next(times))
        report = StepReport(begin_s=begin_s, end_s=begin_s + 1.0, epochs=None)
        output = scheduler.schedule()
        result = timed(model_output(["a"], {"a": 9}), report)
        (one,) = scheduler.update_from_output(output, result)[0].outputs
        return [(event.type, event.timestamp) for event in one.events or ()]

    turn()
    assert turn() == []
    scheduler.reset_prefix_cache(reset_running_requests=True)
    kinds = EngineCoreEventType
    assert turn() == [(kinds.PREEMPTED, 3.0), (kinds.SCHEDULED, 3.0)]
