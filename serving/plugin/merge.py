"""Merges the ranks' schedulers: decisions, outputs by client, statistics."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.request import Request
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from serving.engine.scheduler_state import RankQueues, SchedulerState


def queues_of(rank: Scheduler) -> RankQueues:
    """Present queues of a rank's scheduler."""
    running, waiting = rank.get_request_counts()
    pool = rank.kv_cache_manager.block_pool
    used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # less vLLM's null block
    return RankQueues(running=running, waiting=waiting, kv_blocks_used=used)


REFRESH_WALL_S: Final = 0.25
"""Interval at which a decision under way refreshes the ranks' queues."""


@dataclass
class LockstepOutput(SchedulerOutput):
    """A merged SchedulerOutput that keeps each rank's own, and `state` for the engine.

    `continues`: requests were left from the step before, so no time was idle. `abandoned`: the step
    under way has none left. Its `state` is refreshed, last at monotonic `refreshed_s`.
    """

    by_rank: list[SchedulerOutput] = field(default_factory=list)
    state: SchedulerState = field(default_factory=SchedulerState)
    continues: bool = False
    abandoned: bool = False
    refreshed_s: float = 0.0

    def is_awaited(self, ranks: Sequence[Scheduler]) -> bool:
        """Whether a request computed in this step still exists."""
        return any(
            request_id in rank.requests
            for rank, output in zip(ranks, self.by_rank, strict=True)
            for request_id in output.num_scheduled_tokens
        )

    def hand_out_again(
        self,
        queues: Callable[[], tuple[RankQueues, ...]],
        *,
        is_awaited: bool,
        arrived_requests: int,
        unplaced_requests: int,
    ) -> None:
        """Refresh a decision under way; `is_awaited`: one of its requests still exists."""
        self.abandoned = not is_awaited
        now_s = time.monotonic()
        if now_s - self.refreshed_s >= REFRESH_WALL_S:
            self.refreshed_s = now_s
            self.state = replace(
                self.state,
                arrived_requests=arrived_requests,
                unplaced_requests=unplaced_requests,
                rank_states=queues(),
            )


def merge_bitmasks(ranks: Sequence[Scheduler], decision: LockstepOutput) -> GrammarOutput | None:
    """The ranks' grammar bitmasks as one."""
    names: list[str] = []
    bitmasks: list[NDArray[np.int32]] = []
    for rank, output in zip(ranks, decision.by_rank, strict=True):
        part = rank.get_grammar_bitmask(output)
        if part is not None:
            names.extend(part.structured_output_request_ids)
            # The bitmask is a view of one buffer that the next rank's call writes again.
            bitmasks.append(part.grammar_bitmask.copy())
    return GrammarOutput(names, np.concatenate(bitmasks)) if names else None


def merge_outputs(
    by_rank: list[SchedulerOutput], state: SchedulerState, *, continues: bool
) -> LockstepOutput:
    """Merge the decisions; a moved request counts as finished in its old rank, for its chips."""
    merged = LockstepOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        by_rank=by_rank,
        state=state,
        continues=continues,
    )
    cached = merged.scheduled_cached_reqs
    for output in by_rank:
        merged.scheduled_new_reqs.extend(output.scheduled_new_reqs)
        merged.num_scheduled_tokens.update(output.num_scheduled_tokens)
        merged.total_num_scheduled_tokens += output.total_num_scheduled_tokens
        merged.finished_req_ids |= output.finished_req_ids
        merged.has_structured_output_requests |= output.has_structured_output_requests
        part = output.scheduled_cached_reqs
        cached.req_ids.extend(part.req_ids)
        cached.resumed_req_ids |= part.resumed_req_ids
        cached.new_block_ids.extend(part.new_block_ids)
        cached.num_computed_tokens.extend(part.num_computed_tokens)
        cached.num_output_tokens.extend(part.num_output_tokens)
        cached.all_token_ids.update(part.all_token_ids)
    return merged


def merge_client(
    merged: dict[int, EngineCoreOutputs], client: int, part: EngineCoreOutputs
) -> None:
    """Add one rank's outputs for `client`."""
    into = merged.get(client)
    if into is None:
        merged[client] = part
        return
    into.outputs.extend(part.outputs)
    if part.finished_requests:
        into.finished_requests = (into.finished_requests or set()) | part.finished_requests


def last_output(request: Request) -> EngineCoreOutput:
    """The end of a request that gets no more tokens."""
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=[],
        finish_reason=request.get_finished_reason(),
        events=request.take_events(),
        trace_headers=request.trace_headers,
    )


def merge_stats(parts: list[SchedulerStats], ranks: int) -> SchedulerStats:
    """Merge statistics: sums of counts, means of shares; `ranks` have equal pools."""
    prefix = PrefixCacheStats()
    drafted = [part.spec_decoding_stats for part in parts if part.spec_decoding_stats is not None]
    for part in parts:
        other = part.prefix_cache_stats
        prefix = replace(
            prefix,
            reset=prefix.reset or other.reset,
            requests=prefix.requests + other.requests,
            queries=prefix.queries + other.queries,
            hits=prefix.hits + other.hits,
            preempted_requests=prefix.preempted_requests + other.preempted_requests,
            preempted_queries=prefix.preempted_queries + other.preempted_queries,
            preempted_hits=prefix.preempted_hits + other.preempted_hits,
        )
    return SchedulerStats(
        num_running_reqs=sum(part.num_running_reqs for part in parts),
        num_waiting_reqs=sum(part.num_waiting_reqs for part in parts),
        num_skipped_waiting_reqs=sum(part.num_skipped_waiting_reqs for part in parts),
        kv_cache_usage=sum(part.kv_cache_usage for part in parts) / ranks,
        prefix_cache_stats=prefix,
        kv_cache_eviction_events=[
            event for part in parts for event in part.kv_cache_eviction_events
        ],
        spec_decoding_stats=_merge_drafts(drafted),
    )


def _merge_drafts(parts: list[SpecDecodingStats]) -> SpecDecodingStats | None:
    """Sums, None without drafts; acceptance is counted by place in a draft."""
    if not parts:
        return None
    return SpecDecodingStats(
        num_spec_tokens=parts[0].num_spec_tokens,
        num_drafts=sum(part.num_drafts for part in parts),
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        num_accepted_tokens=sum(part.num_accepted_tokens for part in parts),
        num_accepted_tokens_per_pos=_sums(part.num_accepted_tokens_per_pos for part in parts),
        num_draft_tokens_per_pos=_sums(part.num_draft_tokens_per_pos for part in parts),
    )


def _sums(counts: Iterable[list[int]]) -> list[int]:
    """Place by place."""
    return [sum(of_place) for of_place in zip(*counts, strict=True)]
