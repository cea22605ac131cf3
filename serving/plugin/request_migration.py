"""Moves requests from rank to rank: all of one that lost its KV, or one that decodes elsewhere.

A request keeps its tokens, grammar, seed, priority and arrival order. Its new rank recomputes all
its tokens, as after a preemption, unless their KV comes too (`kv_connector`); the client sees one
stream without gaps or repeats.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus, StreamingUpdate


def take_out(rank: Scheduler) -> list[Request]:
    """Empty `rank`: frees all KV blocks, drops its cache, returns its requests.

    They keep generated tokens. A streaming session that waits for input gets an error status: its
    state was in the lost KV.
    """
    before = {
        request: request.status
        for queue in (rank.running, rank.kv_holding_waiting, rank.waiting)
        for request in queue
    }
    taken: list[Request] = rank.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    assert len(taken) == len(before)
    _forget_ends(rank, taken)
    for request in taken:
        _renew(rank, request, before[request])
    done = rank.reset_prefix_cache()
    assert done, "a rank without requests holds no KV"
    return taken


def take_prompts(rank: Scheduler) -> list[Request]:
    """Take requests out of `rank` that have no token yet and nothing computed.

    Streaming sessions stay: their further input comes to this rank.
    """
    taken = {
        request: request.status
        for request in rank.waiting
        if not (request.num_output_tokens or request.num_computed_tokens or request.resumable)
    }
    rank.finish_requests([each.request_id for each in taken], RequestStatus.FINISHED_ABORTED)
    _forget_ends(rank, list(taken))
    for request, status in taken.items():
        _renew(rank, request, status)
    return list(taken)


def take_one(rank: Scheduler, request: Request) -> None:
    """Take a running request out of `rank`, whose KV goes with it or is held for it."""
    rank.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    _forget_ends(rank, [request])
    _start_anew(request, RequestStatus.WAITING)
    request.num_preemptions = 0  # or vLLM would resume it as one that its new chips know


def _forget_ends(rank: Scheduler, taken: list[Request]) -> None:
    """Drop ends that clients must not see; the rank's chips still get the finished ids."""
    if rank.finished_req_ids_dict is not None:
        for request in taken:
            rank.finished_req_ids_dict[request.client_index].discard(request.request_id)


def _renew(rank: Scheduler, request: Request, status: RequestStatus) -> None:
    if status == RequestStatus.WAITING_FOR_STREAMING_REQ:
        request.status = RequestStatus.FINISHED_ERROR
        return
    if status == RequestStatus.RUNNING:
        # What vLLM counts where it has to compute a context again.
        request.num_preemptions += 1
        if rank.log_stats:
            request.record_event(EngineCoreEventType.PREEMPTED)
    blocked = status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    _start_anew(request, status if blocked else RequestStatus.WAITING)


def _start_anew(request: Request, status: RequestStatus) -> None:
    assert request.num_in_flight_tokens == 0, "moved while a step computes it"
    request.status = status
    request.num_computed_tokens = 0
    request.is_prefill_chunk = False
    request.num_output_placeholders = 0
    request.num_stale_output_tokens = 0
    request.drop_stale_output = False


def put_in(rank: Scheduler, request: Request) -> None:
    """Add a request with its client's further input; it gets one `queued` event."""
    updates = request.streaming_queue
    was_queued = request.num_output_tokens or request.num_preemptions or _says_queued(request)
    rank.add_request(request)
    if updates is not None:
        request.streaming_queue = updates
    if was_queued and _says_queued(request):
        request.events.pop()


def _says_queued(request: Request) -> bool:
    return bool(request.events) and request.events[-1].type is EngineCoreEventType.QUEUED


def queue_update(waiting: Request, update: Request) -> None:
    """Keep further input, or the end, of a streaming session without a rank."""
    if waiting.streaming_queue is None:  # no rank has had it yet
        waiting.streaming_queue = deque()
    waiting.streaming_queue.append(StreamingUpdate.from_request(update))


def restore_order(rank: Scheduler, arrival: Callable[[Request], int]) -> None:
    """Sort a waiting queue by arrival; a priority queue keeps its own order."""
    if rank.policy is SchedulingPolicy.FCFS:
        waiting = sorted(rank.waiting, key=arrival)
        rank.waiting.remove_requests(waiting)
        for request in waiting:
            rank.waiting.add_request(request)


def carry_contexts(rank: Scheduler, decision: SchedulerOutput) -> None:
    """Add generated tokens to the decision's new requests, where vLLM lists prompts alone."""
    for data in decision.scheduled_new_reqs:
        request = rank.requests[data.req_id]
        if request.num_output_tokens:
            data.prefill_token_ids = list(request.all_token_ids)


def add_silent_rows(output: ModelRunnerOutput, decision: SchedulerOutput) -> None:
    """Add an empty row for each request of a lost rank that did not answer."""
    for request_id in decision.num_scheduled_tokens:
        if request_id not in output.req_id_to_index:
            output.req_id_to_index[request_id] = len(output.req_ids)
            output.req_ids.append(request_id)
            output.sampled_token_ids.append([])


def drop_told_prompt_rows(rank: Scheduler, decision: SchedulerOutput, rows: dict[str, Any]) -> None:
    """Remove prompt log-probabilities sent with the first token, recomputed after a move."""
    for request_id in rows.keys() & decision.num_scheduled_tokens.keys():
        request = rank.requests.get(request_id)
        if request is not None and request.num_output_tokens:
            del rows[request_id]


def lives(rank: Scheduler, request_id: str) -> bool:
    """Whether a rank has a request that has not ended, though KV may be on its way to it."""
    request = rank.requests.get(request_id)
    return request is not None and not request.is_finished()
