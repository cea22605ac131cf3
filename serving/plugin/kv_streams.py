"""KV that leaves a rank while its prompt is computed, for the rank that will decode it.

A prompt gets a rank that decodes, and blocks of its pool, with its first step; in each of its steps
the layers go as they are computed. Where that rank has no blocks, all goes after the prompt, by the
rank's connector. Blocks that are read stay referenced until they have been.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from emulator.specs.step import KvTransfer
from serving.policy.kv_in_flight import KvInFlight


@dataclass(frozen=True, slots=True, kw_only=True)
class _KvPart:
    """Tokens of a request, in blocks of the rank that computed them, which are held."""

    tokens: int
    blocks: list[KVCacheBlock]


@dataclass(slots=True, kw_only=True, eq=False)
class KvStream:
    """A request's way from rank to rank: `tokens` of KV, of which `sent` are there or on the way.

    `rest` is what was not on its way when the request `has_left` its first rank. One that `is_void`
    sends no more.
    """

    request: Request
    from_rank: int
    to_rank: int
    tokens: int
    sent: int
    on_way: deque[_KvPart] = field(default_factory=deque)
    rest: _KvPart | None = None
    has_left: bool = False
    is_void: bool = False


class KvStreams:
    """Streams between `ranks`; `in_flight` bounds them."""

    def __init__(self, ranks: list[Scheduler], in_flight: KvInFlight) -> None:
        self._ranks = ranks
        self._in_flight = in_flight
        self._streams: dict[str, KvStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def coming(self) -> Iterator[tuple[int, Request, int]]:
        """The rank that each request will go to which has not left its own, and its tokens then."""
        for stream in self._streams.values():
            if not (stream.has_left or stream.is_void or stream.request.is_finished()):
                yield stream.to_rank, stream.request, stream.tokens

    def waits_for_end(self, request: Request) -> bool:
        """Whether parts of an earlier way of a request are still under way."""
        stream = self._streams.get(request.request_id)
        return stream is not None and (stream.is_void or stream.request is not request)

    def begin(
        self, number: int, decision: SchedulerOutput, choose: Callable[[Request], int | None]
    ) -> list[KvTransfer]:
        """What goes with a decision of rank `number`; `choose` gives a request's next rank."""
        begun: list[KvTransfer] = []
        for request_id in decision.num_scheduled_tokens:
            request = self._ranks[number].requests[request_id]
            stream = self._streams.get(request_id) or self._open(number, request, choose)
            if stream is None or stream.is_void or stream.request is not request:
                continue
            assert stream.from_rank == number, request_id
            computed = min(request.num_computed_tokens, stream.tokens)
            if computed > stream.sent:
                begun += self._go(stream, self._part(stream, computed), with_step=True)
        return begun

    def begin_rests(self) -> list[KvTransfer]:
        """What goes after the prompts, as far as it may by now."""
        begun: list[KvTransfer] = []
        for stream in self._streams.values():
            if stream.rest is not None:
                rest = self._go(stream, stream.rest, with_step=False)
                stream.rest = None if rest else stream.rest
                begun += rest
        return begun

    def _open(
        self, number: int, request: Request, choose: Callable[[Request], int | None]
    ) -> KvStream | None:
        to_rank = choose(request)
        if to_rank is None:
            return None
        cached_tokens = _reserve(self._ranks[to_rank], request)
        if cached_tokens is None:
            return None
        stream = KvStream(
            request=request,
            from_rank=number,
            to_rank=to_rank,
            tokens=request.num_tokens,
            sent=cached_tokens,
        )
        self._streams[request.request_id] = stream
        return stream

    def _part(self, stream: KvStream, computed: int) -> _KvPart:
        """The tokens up to `computed` that have not been sent, with their blocks held."""
        manager = self._ranks[stream.from_rank].kv_cache_manager
        (blocks,) = manager.get_blocks(stream.request.request_id).blocks
        places = self._places(stream, stream.sent, computed)
        part = _KvPart(tokens=computed - stream.sent, blocks=list(blocks[places]))
        manager.block_pool.touch(part.blocks)
        return part

    def _places(self, stream: KvStream, first: int, end: int) -> slice:
        block_tokens = self._ranks[stream.from_rank].block_size
        return slice(first // block_tokens, -(-end // block_tokens))

    def _go(self, stream: KvStream, part: _KvPart, *, with_step: bool) -> list[KvTransfer]:
        """Let a held part go, if it may; what is computed meanwhile is given back."""
        if not self._in_flight.may_go(stream.from_rank, part.tokens):
            if with_step:
                self._free(stream, part)
            return []
        self._in_flight.begin(stream.from_rank, part.tokens)
        end = stream.sent + part.tokens
        to_manager = self._ranks[stream.to_rank].kv_cache_manager
        (to_blocks,) = to_manager.get_blocks(stream.request.request_id).blocks
        transfer = KvTransfer(
            request_id=stream.request.request_id,
            from_rank=stream.from_rank,
            to_rank=stream.to_rank,
            from_blocks=[block.block_id for block in part.blocks],
            to_blocks=[each.block_id for each in to_blocks[self._places(stream, stream.sent, end)]],
            tokens=part.tokens,
            with_step=with_step,
            is_last=end == stream.tokens,
        )
        stream.sent = end
        stream.on_way.append(part)
        return [transfer]

    def _free(self, stream: KvStream, part: _KvPart) -> None:
        pool = self._ranks[stream.from_rank].kv_cache_manager.block_pool
        pool.free_blocks(reversed(part.blocks))

    def leads_to(self, request: Request, rank_is_open: Callable[[int], bool]) -> int | None:
        """The rank that a request goes to now, if a stream of all its KV leads to an open one."""
        stream = self._streams.get(request.request_id)
        if stream is None or stream.is_void or stream.request is not request:
            return None
        if rank_is_open(stream.to_rank) and stream.tokens == request.num_computed_tokens:
            return stream.to_rank
        self._give_up(stream)
        return None

    def leave(self, request: Request) -> None:
        """Before a running request is taken out of its rank: hold what is still to be sent."""
        stream = self._streams[request.request_id]
        stream.has_left = True
        if stream.sent < stream.tokens:
            stream.rest = self._part(stream, stream.tokens)

    def arrive(self, request: Request) -> None:
        """Let a request wait on its next rank, which it is then added to, for its KV."""
        stream = self._streams[request.request_id]
        request.num_computed_tokens = stream.tokens
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        rank = self._ranks[stream.to_rank]
        rank._inflight_prefills.add(request)
        if not stream.on_way and stream.rest is None:  # it may run in the next step
            rank.finished_recving_kv_req_ids.add(request.request_id)
            del self._streams[request.request_id]

    def end_part(self, request_id: str, *, has_failed: bool) -> bool:
        """Note the end of a request's next part; whether it was one of a stream."""
        stream = self._streams.get(request_id)
        if stream is None or not stream.on_way:
            return False
        part = stream.on_way.popleft()
        self._in_flight.end(stream.from_rank, part.tokens)
        self._free(stream, part)
        stream.is_void |= has_failed
        return True

    def take_over(self) -> Iterable[tuple[KvStream, bool]]:
        """Streams of requests on their next rank that have ended now, and whether they failed.

        Those that came to nothing give their blocks back.
        """
        for request_id, stream in list(self._streams.items()):
            if stream.on_way:
                continue
            if stream.has_left:
                if stream.is_void or stream.request.is_finished():
                    self._forget_rest(stream)
                if stream.rest is None:
                    del self._streams[request_id]
                    yield stream, stream.is_void
            elif stream.is_void or stream.request.is_finished():
                self._release(stream)

    def keep_to(self, rank_is_open: Callable[[int], bool]) -> None:
        """Give up ways to ranks that are not open any more."""
        for stream in list(self._streams.values()):
            if not stream.has_left and not rank_is_open(stream.to_rank):
                self._give_up(stream)

    def keep_from(self, rank_prefills: Callable[[int], bool]) -> None:
        """Give up ways from ranks that do not prefill any more, and so keep their requests."""
        for stream in list(self._streams.values()):
            if not stream.has_left and not rank_prefills(stream.from_rank):
                self._give_up(stream)

    def abandon(self, request: Request) -> None:
        """Give up the way of a request that leaves its rank before its prompt is computed."""
        stream = self._streams.get(request.request_id)
        if stream is not None and stream.request is request and not stream.has_left:
            self._give_up(stream)

    def lose(self, ranks: set[int]) -> None:
        """Forget ways from and to ranks that lost all KV, of which nothing is under way."""
        for request_id, stream in list(self._streams.items()):
            if not ranks & {stream.from_rank, stream.to_rank}:
                continue
            assert not stream.on_way, "transfers of a lost rank have failed"
            self._forget_rest(stream)
            if not stream.has_left:
                self._release(stream)
            elif stream.to_rank in ranks:
                # Or vLLM would keep its blocks for a load that does not come.
                self._ranks[stream.to_rank].finished_recving_kv_req_ids.add(request_id)
                del self._streams[request_id]
            else:
                stream.is_void = True

    def _forget_rest(self, stream: KvStream) -> None:
        if stream.rest is not None:
            self._free(stream, stream.rest)
            stream.rest = None

    def _give_up(self, stream: KvStream) -> None:
        """Send no more, and free the blocks of a request that does not come, or its last part."""
        stream.is_void = True
        if not stream.on_way:
            self._release(stream)

    def _release(self, stream: KvStream) -> None:
        name = stream.request.request_id
        self._ranks[stream.to_rank].kv_cache_manager.coordinator.free(name)
        del self._streams[name]


def _reserve(rank: Scheduler, request: Request) -> int | None:
    """Give a request that is not there yet blocks for its tokens; returns those cached there, or
    None without room.
    """
    manager, tokens = rank.kv_cache_manager, request.num_tokens
    coordinator, blocks, cached = manager.coordinator, manager.empty_kv_cache_blocks.blocks, 0
    if manager.prefix_cache_lookup_enabled(request):
        blocks, cached, _ = coordinator.find_longest_cache_hit(request.block_hashes, tokens - 1)
    needed = coordinator.get_num_blocks_to_allocate(
        request_id=request.request_id,
        num_tokens=tokens,
        new_computed_blocks=blocks,
        num_encoder_tokens=0,
        total_computed_tokens=tokens,
        num_local_computed_tokens=cached,
        num_tokens_main_model=tokens,
        prefill_end=tokens,
    )
    free = manager.block_pool.get_num_free_blocks() - rank._inflight_prefill_reserved_blocks()
    if needed > free:
        return None
    coordinator.allocate_new_computed_blocks(
        request_id=request.request_id,
        new_computed_blocks=blocks,
        num_local_computed_tokens=cached,
        num_external_computed_tokens=tokens - cached,
    )
    return int(cached)
