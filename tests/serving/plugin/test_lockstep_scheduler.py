"""LockstepScheduler against vLLM's own Scheduler, which nobody here wrote."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config, kv_pool
from tests.serving.plugin.lockstep_workload import (
    Arrival,
    Turn,
    chosen_token,
    computed,
    model_output,
    random_workload,
)

pytestmark = pytest.mark.long

AMPLE_BLOCKS, FEW_BLOCKS = 400, 24


def scheduler(kind: Any, config: VllmConfig, blocks: int, **more: Any) -> Any:
    return kind(
        vllm_config=config,
        kv_cache_config=kv_pool(config, blocks),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        **more,
    )


def plain(output: EngineCoreOutput) -> tuple[Any, ...]:
    """An output without the wall's time stamps, comparable by value."""
    logprobs = output.new_logprobs
    return (
        output.request_id,
        output.new_token_ids,
        output.finish_reason,
        output.stop_reason,
        [event.type for event in output.events or ()],
        output.prefill_stats,
        logprobs and [array.tolist() for array in logprobs[:3]],
    )


def summed(parts: list[SchedulerStats]) -> dict[str, Any]:
    """What the stats of all ranks together must be, field by field, as plain numbers."""
    prefix = Counter[str]()
    for part in parts:
        counts = vars(part.prefix_cache_stats)
        prefix.update({name: int(n) for name, n in counts.items() if name != "hits_by_source"})
    return {
        "running": sum(part.num_running_reqs for part in parts),
        "waiting": sum(part.num_waiting_reqs for part in parts),
        "skipped": sum(part.num_skipped_waiting_reqs for part in parts),
        "usage": pytest.approx(sum(part.kv_cache_usage for part in parts) / len(parts)),
        "prefix": {name: n for name, n in prefix.items() if name != "reset" and n},
        "reset": prefix["reset"] > 0,
    }


class Twin:
    """A LockstepScheduler, and a bare Scheduler per rank that gets the rank's requests alone."""

    def __init__(self, ranks: int, blocks: int, *, clients: int = 1, **arguments: Any) -> None:
        config = engine_config(ranks, **arguments)
        more = {"log_stats": True, "include_finished_set": clients > 1}
        self.lockstep: LockstepScheduler = scheduler(LockstepScheduler, config, blocks, **more)
        self.bare: list[Scheduler] = [
            scheduler(Scheduler, config, blocks, **more) for _ in range(ranks)
        ]
        self.lengths: dict[str, int] = {}
        self.outcome: dict[str, str] = {}
        self.seen: Counter[str] = Counter()

    def play(self, workload: list[Turn]) -> None:
        """Play all turns, and then steps until nothing is left."""
        for turn in workload:
            self.before(turn)
            self.step(turn.late_aborts)
            self.check_conservation()
        while self.lockstep.has_requests():
            self.step(())
            self.check_conservation()
            self.seen["more steps"] += 1
            assert self.seen["more steps"] < 5_000
        assert not any(bare.has_requests() for bare in self.bare)

    def before(self, turn: Turn) -> None:
        if turn.pause is not None:
            for each in (self.lockstep, *self.bare):
                each.set_pause_state(turn.pause)
            self.seen[turn.pause.name] += 1
        for arrival in turn.arrivals:
            self.add(arrival)
        self.abort(turn.aborts)
        if turn.reset is not None:
            done = self.lockstep.reset_prefix_cache(turn.reset)
            alone = [bare.reset_prefix_cache(turn.reset) for bare in self.bare]
            assert done == all(alone)
            self.seen["reset" if done else "reset refused"] += 1
        assert self.lockstep.pause_state is self.bare[0].pause_state
        self.check_counts()

    def add(self, arrival: Arrival) -> None:
        self.lockstep.add_request(arrival.request())
        (rank,) = (
            number
            for number, rank in enumerate(self.lockstep.ranks)
            if arrival.name in rank.requests
        )
        self.bare[rank].add_request(arrival.request())
        self.lengths[arrival.name] = len(arrival.prompt)

    def abort(self, names: tuple[str, ...]) -> None:
        finished = self.lockstep.finish_requests(names, RequestStatus.FINISHED_ABORTED)
        expected = [
            request.request_id
            for bare in self.bare
            for request in bare.finish_requests(names, RequestStatus.FINISHED_ABORTED)
        ]
        assert sorted(request.request_id for request in finished) == sorted(expected)
        self.outcome |= dict.fromkeys(expected, "aborted")

    def check_counts(self) -> None:
        counts = [bare.get_request_counts() for bare in self.bare]
        assert self.lockstep.get_request_counts() == tuple(map(sum, zip(*counts, strict=True)))
        unfinished = sum(bare.get_num_unfinished_requests() for bare in self.bare)
        assert self.lockstep.get_num_unfinished_requests() == unfinished
        assert self.lockstep.has_finished_requests() == any(
            bare.has_finished_requests() for bare in self.bare
        )

    def step(self, late_aborts: tuple[str, ...]) -> None:
        merged = self.lockstep.schedule()
        separate = [bare.schedule() for bare in self.bare]
        assert merged.by_rank == separate
        self.check_merged(merged, separate)
        sampled: dict[str, int] = {}
        by_rank = []
        for output in separate:
            names = list(output.num_scheduled_tokens)
            for name in computed(output, self.lengths, names):
                sampled[name] = chosen_token(name, self.lengths[name])
            by_rank.append(model_output(names, sampled))
        self.abort(late_aborts)
        together = model_output(sorted(merged.num_scheduled_tokens), sampled)
        results = self.lockstep.update_from_output(merged, together)
        expected = [
            bare.update_from_output(output, own)
            for bare, output, own in zip(self.bare, separate, by_rank, strict=True)
        ]
        self.check_results(results, expected)

    def check_merged(self, merged: LockstepOutput, separate: list[SchedulerOutput]) -> None:
        counts: dict[str, int] = {}
        for output in separate:
            assert not counts.keys() & output.num_scheduled_tokens.keys()
            counts |= output.num_scheduled_tokens
            self.seen["preempted"] += len(output.preempted_req_ids or ())
            self.seen["resumed"] += len(output.scheduled_cached_reqs.resumed_req_ids)
            self.seen["cached"] += sum(n.num_computed_tokens > 0 for n in output.scheduled_new_reqs)
        assert merged.num_scheduled_tokens == counts
        assert merged.total_num_scheduled_tokens == sum(counts.values())
        assert merged.finished_req_ids == set().union(*(o.finished_req_ids for o in separate))
        assert merged.scheduled_new_reqs == [n for o in separate for n in o.scheduled_new_reqs]
        cached = [o.scheduled_cached_reqs for o in separate]
        into = merged.scheduled_cached_reqs
        for name in ("req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens"):
            assert getattr(into, name) == [row for part in cached for row in getattr(part, name)]
        assert into.resumed_req_ids == set().union(*(part.resumed_req_ids for part in cached))
        assert into.all_token_ids.keys() == {n for part in cached for n in part.all_token_ids}

    def check_results(
        self,
        results: dict[int, EngineCoreOutputs],
        expected: list[dict[int, EngineCoreOutputs]],
    ) -> None:
        stats = [part.scheduler_stats for each in expected for part in each.values()]
        clients = {client for each in expected for client in each}
        assert results.keys() == clients
        for client in clients:
            parts = [each[client] for each in expected if client in each]
            outputs = [output for part in parts for output in part.outputs]
            assert [plain(o) for o in results[client].outputs] == [plain(o) for o in outputs]
            finished = set().union(*(part.finished_requests or () for part in parts))
            assert (results[client].finished_requests or set()) == finished
            for output in outputs:
                if output.finish_reason is not None:
                    assert output.request_id not in self.outcome
                    self.outcome[output.request_id] = str(output.finish_reason)
        given = [part.scheduler_stats for part in results.values()]
        (merged,) = [each for each in given if each is not None]
        assert summed([merged]) == summed([each for each in stats if each is not None])

    def check_conservation(self) -> None:
        """Each request that came is on one rank, or ended once; and not both."""
        living = [name for rank in self.lockstep.ranks for name in rank.requests]
        assert sorted([*living, *self.outcome]) == sorted(self.lengths)


@pytest.mark.parametrize("blocks", [AMPLE_BLOCKS, FEW_BLOCKS])
@pytest.mark.parametrize("ranks", [1, 3])
def test_each_rank_decides_as_a_bare_scheduler_with_its_requests(ranks: int, blocks: int) -> None:
    twin = Twin(ranks, blocks)
    twin.play(random_workload(7, turns=150, rate=0.5 * ranks))

    assert twin.outcome.keys() == twin.lengths.keys()
    assert {"stop", "length", "aborted"} <= set(twin.outcome.values())
    assert twin.seen["cached"] > 0
    assert twin.seen["PAUSED_NEW"] > 0
    assert twin.seen["reset"] > 0
    if blocks == FEW_BLOCKS:
        assert twin.seen["preempted"] > 5
        assert twin.seen["resumed"] > 5


@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(1, 4),
    blocks=st.sampled_from([FEW_BLOCKS, 60, AMPLE_BLOCKS]),
    rate=st.sampled_from([0.3, 1.0, 2.0]),
    clients=st.integers(1, 2),
    caching=st.booleans(),
)
def test_no_workload_tells_the_ranks_from_bare_schedulers(
    seed: int, ranks: int, blocks: int, rate: float, clients: int, caching: bool
) -> None:
    twin = Twin(ranks, blocks, clients=clients, enable_prefix_caching=caching)
    twin.play(random_workload(seed, turns=30, rate=rate, clients=clients))

    assert twin.outcome.keys() == twin.lengths.keys()
