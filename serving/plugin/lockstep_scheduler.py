"""One unmodified vLLM `Scheduler` per data-parallel rank, each with its own KV pool, in lockstep.

vLLM sees one scheduler. A request that admission has let in (`serving.policy.admission`) goes
through it to its first token: `add_request` gives it a rank (`RankLoads.choose`); in each step
`schedule` lets every rank schedule within its policy's prefill tokens (`RankThrottle.schedule`) and
merges the decisions for the engine, which computes the step, costs it and holds it until its
emulated end (`serving.engine.engine_steps`); `update_from_output` gives the ranks their tokens, and
`_stamp` puts the step's emulated begin and end on events and outputs, so that vLLM's duration
metrics are emulated. Requests of a lost rank move to others; where ranks have roles, a request goes
on from the rank that computed its prompt to one that decodes (`RankRoles`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from vllm.multimodal import MULTIMODAL_REGISTRY, MultiModalRegistry
from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request, RequestStatus

from serving.engine.fault_log import Moved
from serving.engine.scheduler_state import SchedulerState
from serving.engine.step_report import StepReport
from serving.engine.wake_request import wake_request_of
from serving.plugin import request_migration as migration
from serving.plugin.engine_kv_connector import with_connectors
from serving.plugin.kv_events import publish_together, without_publishers
from serving.plugin.merge import (
    LockstepOutput,
    last_output,
    merge_bitmasks,
    merge_client,
    merge_outputs,
    merge_stats,
    queues_of,
)
from serving.plugin.ngram_drafts import NgramDrafts, give_guesses
from serving.plugin.rank_policies import RankLoads, RankThrottle
from serving.plugin.rank_roles import Placing, RankRoles
from serving.plugin.request_place import NOWHERE, RequestPlace, name_weights
from serving.plugin.traced_requests import TracedRequests
from serving.plugin.translate import StillHeld, TimedOutput, stamp_events
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import DraftTokenIds
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.structured_output import StructuredOutputManager


class LockstepScheduler(SchedulerInterface):
    """N vLLM schedulers behind the interface of one.

    Invariants: a request lives in exactly one rank, or waits for an open rank or the end of a step
    under way, or came when no rank was up and ends in the next step; a rank that is down has none;
    merged counts are sums.
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
        settings = Settings.from_additional_config(vllm_config.additional_config)
        config = with_connectors(without_publishers(vllm_config), settings.prefill_ranks)
        self.ranks = [
            Scheduler(
                vllm_config=config,
                kv_cache_config=kv_cache_config,
                structured_output_manager=structured_output_manager,
                block_size=block_size,
                hash_block_size=hash_block_size,
                mm_registry=mm_registry,
                include_finished_set=include_finished_set,
                log_stats=log_stats,
            )
            for _ in range(settings.ranks)
        ]
        publish_together(self.ranks, vllm_config)
        self.kv_cache_config = kv_cache_config
        self.ranks_up: NDArray[np.bool_] = np.ones(len(self.ranks), dtype=np.bool_)
        self.empty_steps: NDArray[np.int64] = np.zeros(len(self.ranks), dtype=np.int64)
        self._log_stats = log_stats
        self._throttle = RankThrottle(self.ranks, parse_prefill_policy(settings.prefill_policy))
        placing = Placing(self._open_own_ranks, self._put, self._send_again, self._arrival)
        self._roles = RankRoles(self.ranks, settings.prefill_ranks, kv_cache_config, placing)
        self._loads = RankLoads(self.ranks, self._roles)
        self._drafts = NgramDrafts.of(vllm_config)
        self._places: dict[str, RequestPlace] = {}
        traces = vllm_config.observability_config.otlp_traces_endpoint is not None
        self._traced = TracedRequests(self.ranks, self._places, traces=traces)
        self._arrivals = 0
        self._turned_away: dict[str, Request] = {}
        self._came: list[Request] = []  # to ranks since the last step ended
        self._closed: NDArray[np.bool_] = np.zeros(len(self.ranks), dtype=np.bool_)
        self._weights: tuple[str, ...] = ()
        self._wake = wake_request_of(vllm_config.instance_id)
        self._moved_requests = 0
        self._moved: list[Moved] = []
        self._under_way: LockstepOutput | None = None
        self._report: StepReport | None = None
        self._announced = False

    @property
    def kv_cache_manager(self) -> Any:
        """Rank 0's, which vLLM asks for block sizes; all ranks have the same."""
        return self.ranks[0].kv_cache_manager

    def get_kv_connector(self) -> Any:
        """Rank 0's where engines exchange KV; None elsewhere."""
        return self._roles.exchange

    def schedule(self, throttle_prefills: bool = False) -> LockstepOutput:
        """Schedule every rank and merge; a step under way is handed out again (`StillHeld`)."""
        self._announced = True
        if self._under_way is not None:
            self._under_way.hand_out_again(
                lambda: tuple(map(queues_of, self.ranks)),
                is_awaited=self._under_way.is_awaited(self.ranks),
                arrived_requests=self._arrivals,
                unplaced_requests=len(self._turned_away),
            )
            return self._under_way
        self._wake.grant()
        by_rank = self._throttle.schedule(throttle_prefills)
        for number, (rank, output) in enumerate(zip(self.ranks, by_rank, strict=True)):
            migration.carry_contexts(rank, output)
            for request_id in output.finished_req_ids:
                place = self._places.get(request_id)
                # It may have moved to another rank, or come again under its id.
                if place and place.rank == number and not migration.lives(rank, request_id):
                    del self._places[request_id]
        has_tokens = np.array([output.total_num_scheduled_tokens > 0 for output in by_rank])
        if has_tokens.any():
            self.empty_steps += self.ranks_up & ~has_tokens
        continues, self._wake.continues = self._wake.continues, False
        moved, self._moved = tuple(self._moved), []
        if self._roles.are_apart:
            self._loads.forget()  # requests that waited may run now
        kv_transfers = self._roles.begun(by_rank, self._loads.choose)
        state = SchedulerState(
            rank_states=tuple(map(queues_of, self.ranks)),
            arrived_requests=self._arrivals,
            unplaced_requests=len(self._turned_away),
            moved_requests=self._moved_requests,
            empty_rank_steps=int(self.empty_steps.sum()),
            moved=moved,
            closed_ranks=tuple(np.flatnonzero(self._closed).tolist()),
            has_tokens=bool(has_tokens.any()),
            kv_transfers=kv_transfers,
            rank_roles=self._roles.roles if self._roles.may_change else (),
        )
        return merge_outputs(by_rank, state, continues=continues)

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Concatenate the ranks' bitmasks."""
        assert isinstance(scheduler_output, LockstepOutput)
        if self._under_way is not None:
            return None  # its step has them
        return merge_bitmasks(self.ranks, scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: "ModelRunnerOutput"
    ) -> dict[int, EngineCoreOutputs]:
        """Give each rank its decision and tokens, merge outputs by client, evacuate lost ranks."""
        assert isinstance(scheduler_output, LockstepOutput)
        if isinstance(model_runner_output, StillHeld):
            self._under_way = scheduler_output
            return {}
        self._under_way = None
        came, self._came = self._came, []
        report = None
        if isinstance(model_runner_output, TimedOutput):
            self._report = report = model_runner_output.report
            self._weights = report.weights if report is not None else ()
        self._traced.charge(report, scheduler_output.by_rank)
        self._loads.forget()
        merged: dict[int, EngineCoreOutputs] = {}
        stats: list[SchedulerStats] = []
        lost = report.lost_ranks if report is not None else ()
        kv_ended = self._roles.ended(report)
        for number, (rank, output) in enumerate(
            zip(self.ranks, scheduler_output.by_rank, strict=True)
        ):
            if number in lost:
                migration.add_silent_rows(model_runner_output, output)
            migration.drop_told_prompt_rows(rank, output, model_runner_output.prompt_logprobs_dict)
            model_runner_output.kv_connector_output = kv_ended.get(number)
            for client, part in rank.update_from_output(output, model_runner_output).items():
                if part.scheduler_stats is not None:
                    stats.append(part.scheduler_stats)
                    part.scheduler_stats = None
                if self._weights:
                    name_weights(part.outputs, self._weights[number], self._places)
                merge_client(merged, client, part)
        if report is not None:
            self._closed[:] = False
            self._closed[list(report.closed_ranks)] = True
            self._end(merged, self._evacuate(report))
            self._forget_prefixes(report.renewed_ranks)
        has_tokens = scheduler_output.total_num_scheduled_tokens > 0
        self._roles.go_on(report, self.ranks_up & ~self._closed, computed=has_tokens)
        self._end(merged, self._dismiss_turned_away())
        self._stamp(merged, scheduler_output.by_rank, came)
        self._traced.tell(report, merged.values())
        self._drafts.propose(self.ranks)
        if self._log_stats:
            outputs = merged.setdefault(next(iter(merged), 0), EngineCoreOutputs())
            outputs.scheduler_stats = merge_stats(stats, len(self.ranks))
        # After a step without tokens (a grammar still compiling, a pause) time passes as it does,
        # unless it has waited for KV.
        self._wake.continues = (has_tokens or bool(kv_ended)) and self.has_unfinished_requests()
        return merged

    def _forget_prefixes(self, renewed_ranks: Iterable[int]) -> None:
        """Empty the prefix caches of ranks with other weights."""
        for number in renewed_ranks:
            done = self.ranks[number].reset_prefix_cache()
            assert done, "a rank that read other weights has no requests"

    def _evacuate(self, report: StepReport) -> list[Request]:
        """Move requests off ranks that lost their KV or went down; returns those that ended."""
        self.ranks_up = ranks_up = report.ranks_up_after(self.ranks_up)
        leaving = set(report.lost_ranks) | set(np.flatnonzero(~ranks_up).tolist())
        self._roles.lose(leaving)
        moving = [
            request
            for number in sorted(leaving)
            if number in report.lost_ranks or self.ranks[number].requests
            for request in migration.take_out(self.ranks[number])
        ]
        for request in sorted(moving, key=self._arrival):
            place = self._places[request.request_id]
            place.left = place.rank
            if not request.is_finished() and self.ranks_up.any():
                self._send_again(request)
            elif not request.is_finished():
                request.status = RequestStatus.FINISHED_ERROR
            if request.request_id not in self._turned_away:
                self._note_fate(request)
        reached = {self._places[each.request_id].rank for each in moving if not each.is_finished()}
        for number in reached - {NOWHERE}:
            migration.restore_order(self.ranks[number], self._arrival)
        return [request for request in moving if request.is_finished()]

    def _send_again(self, request: Request) -> None:
        self._places[request.request_id].rank = NOWHERE
        self._send(request)

    def _note_fate(self, request: Request) -> None:
        """Record the new rank, or the error, of a request that left its rank."""
        place, failed = self._places[request.request_id], request.is_finished()
        if place.left is not None:
            self._moved.append(Moved(rank=place.left, name=request.request_id, failed=failed))
            self._moved_requests += not failed
            place.left = None

    def _arrival(self, request: Request) -> int:
        return self._places[request.request_id].arrival

    def _dismiss_turned_away(self) -> list[Request]:
        """Send requests that came without a rank; end them if none is up, keep them if closed."""
        turned_away = sorted(self._turned_away.values(), key=self._arrival)
        self._turned_away = {}
        for request in turned_away:
            if self.ranks_up.any():
                self._send(request)
            else:
                request.status = RequestStatus.FINISHED_ERROR
            if request.request_id not in self._turned_away:
                self._note_fate(request)
            if request.is_finished():
                del self._places[request.request_id]
        return [request for request in turned_away if request.is_finished()]

    def _end(self, merged: dict[int, EngineCoreOutputs], ended: list[Request]) -> None:
        """Send the clients the end, by an error, of requests."""
        for request in ended:
            last = EngineCoreOutputs(outputs=[last_output(request)])
            merge_client(merged, request.client_index, last)

    def _stamp(
        self,
        merged: dict[int, EngineCoreOutputs],
        by_rank: list[SchedulerOutput],
        came: list[Request],
    ) -> None:
        """Replace vLLM's wall stamps by emulated seconds; those that `came` did so by its begin."""
        report = self._report
        if report is None:
            return
        for outputs in merged.values():
            outputs.timestamp = report.end_s
            for output in outputs.outputs:
                place = self._places.get(output.request_id)
                first = place.stamped_events if place else 0
                stamp_events((output.events or [])[first:], report)
                if place:
                    place.stamped_events = 0
        for request in came:
            self._stamp_kept(request, report)
        # A prompt computed in several steps keeps its events until the last: they are of this one.
        for rank, decision in zip(self.ranks, by_rank, strict=True):
            for request_id in decision.num_scheduled_tokens:
                request = rank.requests.get(request_id)
                if request is not None:
                    self._stamp_kept(request, report)

    def _stamp_kept(self, request: Request, report: StepReport) -> None:
        """Stamp events that have not gone to the client yet."""
        place = self._places.get(request.request_id)
        if place is not None and request.events:
            stamp_events(request.events[place.stamped_events :], report)
            place.stamped_events = len(request.events)

    def make_stats(self) -> SchedulerStats | None:
        """Sum the ranks' stats; None when stats are off."""
        parts = [part for rank in self.ranks if (part := rank.make_stats()) is not None]
        return merge_stats(parts, len(self.ranks)) if parts else None

    def add_request(self, request: Request) -> None:
        """Send a request to a rank; if no rank is up, it ends in the next step."""
        place = self._places.get(request.request_id)
        if (
            place
            and place.rank != NOWHERE
            and request.request_id in self.ranks[place.rank].requests
        ):
            self.ranks[place.rank].add_request(request)  # more input of a streaming session
            return
        waiting = self._turned_away.get(request.request_id)
        if waiting is not None and waiting.resumable:
            migration.queue_update(waiting, request)
            return
        self._arrivals += 1
        # An id that comes again begins anew; until it has a rank, it has none that is left.
        params = request.sampling_params
        self._places[request.request_id] = RequestPlace(
            rank=NOWHERE,
            arrival=self._arrivals,
            has_stop_strings=params is not None and bool(params.stop),
        )
        if self._log_stats:
            request.record_event(EngineCoreEventType.QUEUED)
        self._send(request)

    def _send(self, request: Request) -> None:
        """Give a request a rank; it waits while all are closed, or a step is under way.

        Requests that come in a short step get to the scheduler after it: in a long one they wait
        too, or their ranks would depend on the host's time for a step.
        """
        if self._under_way is None and self._put(request, self._open_ranks(request)):
            self._came.append(request)
        else:
            self._turned_away[request.request_id] = request

    def _put(self, request: Request, ranks: NDArray[np.bool_]) -> bool:
        """Give a request one of `ranks`, bool[ranks]; whether there is any."""
        number = self._loads.choose(request, ranks)
        if number is None:
            return False
        self._places[request.request_id].rank = number
        migration.put_in(self.ranks[number], request)
        self._loads.add(number, request)
        return True

    def _open_ranks(self, request: Request) -> NDArray[np.bool_]:
        """Ranks that may take it; for one with tokens, those with its last weights, if any."""
        own = self._open_own_ranks(request)
        ranks = own if own.any() else self.ranks_up & ~self._closed
        return self._roles.takes(ranks)

    def _open_own_ranks(self, request: Request) -> NDArray[np.bool_]:
        """Open ranks with the weights of its last token; all that are open, if it has none."""
        ranks: NDArray[np.bool_] = self.ranks_up & ~self._closed
        place = self._places.get(request.request_id)
        if place is not None and place.weights and self._weights:
            ranks &= np.array(self._weights) == place.weights[-1]
        return ranks

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Finish requests in any rank; unknown ids are ignored, as by vLLM."""
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        wanted = None if request_ids is None else list(request_ids)
        self._loads.forget()
        finished = [
            request
            for rank in self.ranks
            for request in rank.finish_requests(wanted, finished_status)
        ]
        for request_id in list(self._turned_away) if wanted is None else wanted:
            request = self._turned_away.pop(request_id, None)
            if request is not None:
                del self._places[request_id]
                request.status = finished_status
                finished.append(request)
        return finished

    def update_draft_token_ids(self, draft_token_ids: "DraftTokenIds") -> None:
        """Give requests that decode what chips guessed; not those that have moved meanwhile."""
        give_guesses(self.ranks, self._places, draft_token_ids)

    def update_draft_token_ids_in_output(
        self, draft_token_ids: "DraftTokenIds", scheduler_output: SchedulerOutput
    ) -> None:
        """Not called: drafts are there before their step is scheduled."""
        raise AssertionError

    def get_num_unfinished_requests(self) -> int:
        """Sum over ranks, plus requests to be refused."""
        unfinished: int = sum(rank.get_num_unfinished_requests() for rank in self.ranks)
        return unfinished + (len(self._turned_away) if self._owes_turned_away else 0)

    @property
    def _owes_turned_away(self) -> bool:
        """Whether requests without a rank need a step; in a pause, new ones wait."""
        return bool(self._turned_away) and (self._runs or not self.ranks_up.any())

    @property
    def _runs(self) -> bool:
        return self.pause_state is PauseState.UNPAUSED

    def has_finished_requests(self) -> bool:
        """Whether a rank's chips have yet to get finished ids."""
        return any(rank.has_finished_requests() for rank in self.ranks)

    def has_requests(self) -> bool:
        """Also true once at the start, so that the engine gets the queues."""
        return (
            not self._announced
            or self._under_way is not None
            or self._wake.wanted
            or (self._wake.waits and self._runs)
            or self._owes_turned_away
            or self._roles.hold_kv
            or any(rank.has_requests() for rank in self.ranks)
        )

    @property
    def pause_state(self) -> PauseState:
        """The same in all ranks."""
        return self.ranks[0].pause_state

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Pause or resume all ranks together."""
        for rank in self.ranks:
            rank.set_pause_state(pause_state)
        self._wake.paused = not self._runs

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Reset every rank's prefix cache; true if all could, never while a step or KV is held."""
        if self._under_way is not None or self._roles.hold_kv:
            return False
        self._loads.forget()
        how = reset_running_requests, reset_connector
        done = [each.reset_prefix_cache(*how) for each in self.ranks]
        return all(done)  # every rank is reset, also after one that could not

    def reset_encoder_cache(self) -> None:
        """Reset every rank's encoder cache."""
        for rank in self.ranks:
            rank.reset_encoder_cache()

    def get_request_counts(self) -> tuple[int, int]:
        """(running, waiting), summed over ranks."""
        counts = [rank.get_request_counts() for rank in self.ranks]
        waiting = sum(waiting for _, waiting in counts)
        return sum(running for running, _ in counts), waiting + len(self._turned_away)

    def get_kv_cache_usage(self) -> float:
        """Share of all ranks' KV blocks in use."""
        return float(sum(rank.get_kv_cache_usage() for rank in self.ranks)) / len(self.ranks)

    def shutdown(self) -> None:
        """Shut every rank down."""
        for rank in self.ranks:
            rank.shutdown()
