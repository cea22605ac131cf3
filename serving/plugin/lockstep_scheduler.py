"""One unmodified vLLM `Scheduler`, with its own KV pool, per data-parallel rank, all in lockstep.

vLLM sees one scheduler. Each step every rank schedules for itself; the decisions are merged for the
engine and kept apart for the ranks. Emulated times that the executor reports are stamped on events
and outputs, so that vLLM's own duration metrics are in emulated seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from vllm.multimodal import MULTIMODAL_REGISTRY, MultiModalRegistry
from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutputs
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.request import Request, RequestStatus

from serving.plugin.step_report import StepReport, TimedOutput
from serving.policy.rank_choice import choose_rank
from serving.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import DraftTokenIds
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.structured_output import StructuredOutputManager


@dataclass
class LockstepOutput(SchedulerOutput):
    """A merged SchedulerOutput that keeps each rank's own.

    `continues` says that requests were left over from the step before, so no time was idle.
    """

    by_rank: list[SchedulerOutput] = field(default_factory=list)
    continues: bool = False


class LockstepScheduler(SchedulerInterface):
    """N vLLM schedulers behind the interface of one.

    Invariants: a request lives in exactly one rank; the merged output's counts are the ranks' sums.
    """

    connector = None
    ec_connector = None

    def __init__(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        structured_output_manager: "StructuredOutputManager",
        block_size: int,
        hash_block_size: int,
        mm_registry: MultiModalRegistry = MULTIMODAL_REGISTRY,
        include_finished_set: bool = False,
        log_stats: bool = False,
    ) -> None:
        additional = vllm_config.additional_config
        settings = Settings.from_additional_config(additional)
        self.ranks = [
            Scheduler(
                vllm_config=vllm_config,
                kv_cache_config=kv_cache_config,
                structured_output_manager=structured_output_manager,
                block_size=block_size,
                hash_block_size=hash_block_size,
                mm_registry=mm_registry,
                include_finished_set=include_finished_set,
                log_stats=log_stats,
            )
            for _ in range(settings.chips)
        ]
        self.kv_cache_config = kv_cache_config
        self._structured = structured_output_manager
        self._log_stats = log_stats
        self._rank_of: dict[str, int] = {}
        self._stamped_events: dict[str, int] = {}
        self._continues = False
        self._report: StepReport | None = None
        self._announced = False

    @property
    def kv_cache_manager(self) -> Any:
        """Rank 0's manager, which vLLM asks for block sizes; all ranks have the same."""
        return self.ranks[0].kv_cache_manager

    def schedule(self, throttle_prefills: bool = False) -> LockstepOutput:
        """Let every rank schedule, and merge."""
        self._announced = True
        by_rank = [rank.schedule(throttle_prefills) for rank in self.ranks]
        for output in by_rank:
            for request_id in output.finished_req_ids:
                self._rank_of.pop(request_id, None)
                self._stamped_events.pop(request_id, None)
        continues, self._continues = self._continues, False
        return merge_outputs(by_rank, continues)

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Collect the ranks' bitmasks into one, in rank order."""
        assert isinstance(scheduler_output, LockstepOutput)
        names: list[str] = []
        bitmasks: list[NDArray[np.int32]] = []
        for rank, output in zip(self.ranks, scheduler_output.by_rank, strict=True):
            part = rank.get_grammar_bitmask(output)
            if part is not None:
                names.extend(part.structured_output_request_ids)
                # The bitmask is a view of one buffer that the next rank's call writes again.
                bitmasks.append(part.grammar_bitmask.copy())
        return GrammarOutput(names, np.concatenate(bitmasks)) if names else None

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: "ModelRunnerOutput"
    ) -> dict[int, EngineCoreOutputs]:
        """Give each rank its own decision and the tokens; merge what they send to each client."""
        assert isinstance(scheduler_output, LockstepOutput)
        if isinstance(model_runner_output, TimedOutput):
            self._report = model_runner_output.report
        merged: dict[int, EngineCoreOutputs] = {}
        stats: list[SchedulerStats] = []
        for rank, output in zip(self.ranks, scheduler_output.by_rank, strict=True):
            for client, part in rank.update_from_output(output, model_runner_output).items():
                if part.scheduler_stats is not None:
                    stats.append(part.scheduler_stats)
                    part.scheduler_stats = None
                _merge_client(merged, client, part)
        self._stamp(merged, scheduler_output.by_rank)
        if self._log_stats:
            first = next(iter(merged), 0)
            target = merged.setdefault(first, EngineCoreOutputs())
            target.scheduler_stats = self._merge_stats(stats)
        # After a step without tokens (a grammar still compiling, a pause) time passes as it does.
        computed = scheduler_output.total_num_scheduled_tokens > 0
        self._continues = computed and self.has_unfinished_requests()
        return merged

    def _stamp(self, merged: dict[int, EngineCoreOutputs], by_rank: list[SchedulerOutput]) -> None:
        """Put emulated seconds on what vLLM stamped with the wall."""
        report = self._report
        if report is None:
            return
        for outputs in merged.values():
            outputs.timestamp = report.end_s
            for output in outputs.outputs:
                first = self._stamped_events.pop(output.request_id, 0)
                _stamp_events((output.events or [])[first:], report)
        # A prompt computed in several steps keeps its events until the last: they are of this one.
        for rank, decision in zip(self.ranks, by_rank, strict=True):
            for request_id in decision.num_scheduled_tokens:
                request = rank.requests.get(request_id)
                if request is not None and request.events:
                    first = self._stamped_events.get(request_id, 0)
                    _stamp_events(request.events[first:], report)
                    self._stamped_events[request_id] = len(request.events)

    def _merge_stats(self, parts: list[SchedulerStats]) -> SchedulerStats:
        merged = merge_stats(parts, len(self.ranks))
        if self._report is not None:
            # LoRA is refused, so that nothing of vLLM reads or fills this field of whole numbers.
            merged.running_lora_adapters = self._report.snapshot.to_payload()
        return merged

    def make_stats(self) -> SchedulerStats | None:
        """Sum the ranks' stats; None when stats are off."""
        parts = [part for rank in self.ranks if (part := rank.make_stats()) is not None]
        return self._merge_stats(parts) if parts else None

    def add_request(self, request: Request) -> None:
        """Send a request to the rank with the longest prefix hit, then the least load."""
        known = self._rank_of.get(request.request_id)
        if known is None or request.request_id not in self.ranks[known].requests:
            known = choose_rank(
                [_prefix_hit_tokens(rank, request) for rank in self.ranks],
                [_load_tokens(rank) for rank in self.ranks],
            )
            self._rank_of[request.request_id] = known
        self.ranks[known].add_request(request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Finish requests wherever they are; unknown ids are ignored, as vLLM does."""
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        wanted = None if request_ids is None else list(request_ids)
        return [
            request
            for rank in self.ranks
            for request in rank.finish_requests(wanted, finished_status)
        ]

    def update_draft_token_ids(self, draft_token_ids: "DraftTokenIds") -> None:
        """Never called: speculative decoding is refused at start."""
        raise AssertionError("no draft tokens on this platform")

    def update_draft_token_ids_in_output(
        self, draft_token_ids: "DraftTokenIds", scheduler_output: SchedulerOutput
    ) -> None:
        """Never called: speculative decoding is refused at start."""
        raise AssertionError("no draft tokens on this platform")

    def get_num_unfinished_requests(self) -> int:
        """Sum over ranks."""
        return sum(rank.get_num_unfinished_requests() for rank in self.ranks)

    def has_finished_requests(self) -> bool:
        """Whether a rank still has to tell the chips of a finished request."""
        return any(rank.has_finished_requests() for rank in self.ranks)

    def has_requests(self) -> bool:
        """Also true once before the first request: an empty step publishes the clock."""
        return not self._announced or any(rank.has_requests() for rank in self.ranks)

    @property
    def pause_state(self) -> PauseState:
        """The same in all ranks."""
        return self.ranks[0].pause_state

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Pause or resume all ranks together."""
        for rank in self.ranks:
            rank.set_pause_state(pause_state)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Reset every rank's prefix cache; true when all could."""
        # Every rank is reset, also after one that could not.
        done = [
            rank.reset_prefix_cache(reset_running_requests, reset_connector) for rank in self.ranks
        ]
        return all(done)

    def reset_encoder_cache(self) -> None:
        """Reset every rank's encoder cache."""
        for rank in self.ranks:
            rank.reset_encoder_cache()

    def get_request_counts(self) -> tuple[int, int]:
        """(running, waiting), summed over ranks."""
        counts = [rank.get_request_counts() for rank in self.ranks]
        return sum(running for running, _ in counts), sum(waiting for _, waiting in counts)

    def get_kv_cache_usage(self) -> float:
        """Share of all ranks' KV blocks in use."""
        usage: float = sum(rank.get_kv_cache_usage() for rank in self.ranks)
        return usage / len(self.ranks)

    def shutdown(self) -> None:
        """Shut every rank down."""
        for rank in self.ranks:
            rank.shutdown()


def _stamp_events(events: Iterable[EngineCoreEvent], report: StepReport) -> None:
    for event in events:
        if event.type is EngineCoreEventType.QUEUED:
            event.timestamp = min(report.at_monotonic_s(event.timestamp), report.begin_s)
        else:
            event.timestamp = report.begin_s


def _prefix_hit_tokens(rank: Scheduler, request: Request) -> int:
    manager = rank.kv_cache_manager
    if not manager.prefix_cache_lookup_enabled(request):
        return 0
    hit = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
    return int(hit[1])


def _load_tokens(rank: Scheduler) -> int:
    return sum(request.num_tokens for request in rank.requests.values())


def merge_outputs(by_rank: list[SchedulerOutput], continues: bool) -> LockstepOutput:
    """Merge the ranks' decisions into the one that the engine sees."""
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


def _merge_client(
    merged: dict[int, EngineCoreOutputs], client: int, part: EngineCoreOutputs
) -> None:
    into = merged.get(client)
    if into is None:
        merged[client] = part
        return
    into.outputs.extend(part.outputs)
    if part.finished_requests:
        into.finished_requests = (into.finished_requests or set()) | part.finished_requests


def merge_stats(parts: list[SchedulerStats], ranks: int) -> SchedulerStats:
    """Sum what counts and average what is a share; `ranks` have equal pools."""
    prefix = PrefixCacheStats()
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
    )
