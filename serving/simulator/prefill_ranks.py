"""Ranks of one engine that prefill, and KV on its way to those that decode: `RankRoles` and
`KvStreams` of arrays.

What a transfer costs is `kv_sent`, as on the live machine. Blocks are counted by number: those that
a next rank keeps for a prompt, and those that a first one keeps while they are sent. A request
whose next rank had no room gets blocks there when its KV is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.fabric.kv_transfer import layered_ready_ns
from emulator.ultraserver.handover_cost import HandoverCost, kv_sent
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.units import NS_PER_S
from serving.policy.kv_in_flight import KvInFlight
from serving.policy.rank_choice import choose_rank
from serving.policy.rank_roles import (
    AUTO,
    RankRole,
    RoleDecider,
    RoleLoad,
    Roles,
    first_roles,
    with_role,
)
from serving.simulator import compiled_schedulers as kernel
from serving.simulator import request_migration as migration
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.scheduler_arrays import NONE


class KvOnWay(NamedTuple):
    """A request between two ranks, until `there_ns`, with blocks that both keep for it."""

    there_ns: int
    request: int
    from_rank: int
    to_rank: int
    from_blocks: int
    to_blocks: int


@dataclass(slots=True, kw_only=True)
class _Stream:
    """A request's way: `tokens` of KV, of which `sent` are there by `there_ns`. One that `is_void`
    sends no more.

    `part` of them are computed in the step under way; `blocks` are kept on `to_rank`, and
    `last_blocks` is how many the newest part lies in.
    """

    from_rank: int
    to_rank: int
    tokens: int
    sent: int
    blocks: int
    there_ns: int = 0
    part: int = 0
    last_blocks: int = 0
    is_void: bool = False


class _SimulatedKvPart(NamedTuple):
    """Tokens between two ranks, until `there_ns`."""

    there_ns: int
    from_rank: int
    to_rank: int
    tokens: int
    joules: float


class _Rest(NamedTuple):
    """Tokens of a request that has left its rank, not on their way yet."""

    request: int
    stream: _Stream
    tokens: int


class PrefillRanks:
    """Roles of the ranks of `schedulers`, on a machine of `layout`."""

    def __init__(
        self, schedulers: LockstepSchedulers, prefill_ranks: int | str, layout: MachineLayout
    ) -> None:
        self._schedulers = schedulers
        self._layout = layout
        ranks = len(schedulers.arrays.ranks)
        self._decider: RoleDecider | None = None
        if prefill_ranks == AUTO:
            bounds = schedulers.bounds
            self._decider = RoleDecider(step_tokens=bounds.step_tokens, seats=bounds.seats)
        self._take(first_roles(prefill_ranks, ranks))
        self._open: Bools = np.ones(ranks, dtype=np.bool_)
        self._on_way: list[KvOnWay] = []  # a heap
        self._rests: list[_Rest] = []
        self._streams: dict[int, _Stream] = {}  # of requests on their first ranks
        self._in_flight = KvInFlight(ranks, layout.model.kv_bytes_per_token)
        self._parts: list[_SimulatedKvPart] = []  # a heap
        self.joules = 0.0
        """Of what is there, beyond idle chips."""
        schedulers.revise_demand = self._count_ready
        self._let_prefill()

    @property
    def waits_until_ns(self) -> int | None:
        """When the next step can begin, if every request is on its way; None if others are not."""
        left = len(self._on_way) + len(self._rests)
        return self.next_ns if left and left == self._schedulers.requests else None

    @property
    def next_ns(self) -> int | None:
        """When the next request's KV is there, or, if none's ends, a part; None without any."""
        if self._on_way:
            return self._on_way[0].there_ns
        return self._parts[0].there_ns if self._parts else None

    def begin_step(self) -> None:
        """After a decision: prompts of ranks that prefill get a next rank, and what they compute
        goes there.
        """
        arrays = self._schedulers.arrays
        rows = arrays.rows[: self._schedulers.rows]
        rows = rows[self._prefill[rows["rank"]]]
        decode = self._open & ~self._prefill
        if not len(rows) or not decode.any():
            return
        arrays.ranks["is_open"] = decode
        for rank, request in zip(rows["rank"].tolist(), rows["request"].tolist(), strict=True):
            stream = self._streams.get(request) or self._stream(request, rank)
            if stream is None or stream.is_void:
                continue
            computed = min(int(arrays.requests[request]["computed"]), stream.tokens)
            part = computed - stream.sent
            if part > 0 and self._in_flight.may_go(rank, part):
                self._in_flight.begin(rank, part)
                stream.part = part
        self._let_prefill()

    def _stream(self, request: int, from_rank: int) -> _Stream | None:
        arrays, block_tokens = self._schedulers.arrays, self._schedulers.bounds.block_tokens
        if arrays.requests[request]["tokens_left"] <= 1:
            return None
        figures = self._schedulers.weighed(request)
        to_rank = choose_rank(**figures)
        assert to_rank is not None, "a rank that decodes is open"
        tokens, cached = (
            int(arrays.requests[request]["tokens"]),
            int(figures["hit_tokens"][to_rank]),
        )
        blocks = -(-tokens // block_tokens) - cached // block_tokens
        if blocks > arrays.ranks[to_rank]["free_blocks"]:
            return None
        arrays.ranks[to_rank]["free_blocks"] -= blocks
        self._count(request, to_rank, 1)
        stream = _Stream(
            from_rank=from_rank, to_rank=to_rank, tokens=tokens, sent=cached, blocks=blocks
        )
        self._streams[request] = stream
        return stream

    def end_step(self, begin_ns: int, end_ns: int) -> None:
        """After a step from begin to end: what it computed is on its way, layer by layer, and
        requests with their next token leave ranks that prefill.
        """
        for stream in self._streams.values():
            if stream.part:
                self._send_part(stream, begin_ns, end_ns)
        now_s = end_ns / NS_PER_S
        self.note_idle()
        if self._decider is not None and self._decider.is_due(now_s):
            self._change(self._decider.decide(self.roles, self._load(), now_s))
        self._drop_ended(end_ns)
        self._send_on()

    def note_idle(self) -> None:
        """Let the decider hear of it if no request is left, after a step or after some are
        aborted; one whose KV is on its way is left.
        """
        ranks = self._schedulers.arrays.ranks
        comes = bool(self._on_way or self._rests)
        if self._decider is None or comes or ranks["running_count"].any():
            return
        if not ranks["waiting_count"].any():
            self._decider.note_idle()

    def _load(self) -> RoleLoad:
        arrays = self._schedulers.arrays
        prompt_tokens, decodes = 0, len(self._on_way) + len(self._rests)
        for rank in range(len(arrays.ranks)):
            running = arrays.running[rank, : arrays.ranks[rank]["running_count"]]
            waiting = migration.waiting_requests(arrays, rank)
            requests = arrays.requests[np.concatenate([running, waiting])]
            is_ready = np.where(requests["is_running"], ~requests["is_prefill"], False)
            is_ready |= requests["received"] > 0
            decodes += int(is_ready.sum())
            left = requests["tokens"] - requests["computed"]
            prompt_tokens += int(left[~is_ready].sum())
        return RoleLoad(prompt_tokens=prompt_tokens, decodes=decodes)

    def change(self, rank: int, role: RankRole) -> None:
        """Give a rank another role, between two steps; raises ConfigError."""
        self._change(with_role(self.roles, rank, role))

    def _change(self, roles: Roles) -> None:
        before = self._prompts
        self._take(roles)
        self._let_prefill()
        if (before == self._prompts).all():
            return
        arrays, schedulers = self._schedulers.arrays, self._schedulers
        moving = [
            request
            for rank in np.flatnonzero(before).tolist()
            for request in migration.waiting_requests(arrays, rank).tolist()
            if arrays.requests[request]["first_token_ns"] == NONE
        ]
        for request in moving:
            kernel.abort(arrays, schedulers.cache, request)
        schedulers.send_again(np.array(moving, dtype=np.int64))

    def _take(self, roles: Roles) -> None:
        self.roles = roles
        self._prefill: Bools = np.array([role is RankRole.PREFILL for role in roles])
        self._prompts: Bools = np.array([role is not RankRole.DECODE for role in roles])

    def _send_part(self, stream: _Stream, begin_ns: int, end_ns: int) -> None:
        cost = self._cost(stream, stream.part)
        there_ns = layered_ready_ns(
            begin_ns=begin_ns,
            end_ns=end_ns,
            free_ns=stream.there_ns,
            transfer_ns=cost.duration_ns,
            layers=self._layout.model.layers,
        )
        self._sent(stream, stream.part, there_ns, cost.joules)
        stream.part = 0

    def _cost(self, stream: _Stream, tokens: int) -> HandoverCost:
        return kv_sent(
            self._layout, from_rank=stream.from_rank, to_rank=stream.to_rank, tokens=tokens
        )

    def _sent(self, stream: _Stream, tokens: int, there_ns: int, joules: float) -> None:
        """Note tokens on their way, which count as in flight already."""
        part = _SimulatedKvPart(there_ns, stream.from_rank, stream.to_rank, tokens, joules)
        heappush(self._parts, part)
        block_tokens = self._schedulers.bounds.block_tokens
        end = stream.sent + tokens
        stream.last_blocks = -(-end // block_tokens) - stream.sent // block_tokens
        stream.sent, stream.there_ns = end, there_ns

    def _drop_ended(self, end_ns: int) -> None:
        """Give up ways of requests that have ended, from ranks that prefill no more, and to ranks
        that decode no more.
        """
        rank_of, decode = self._schedulers.arrays.requests["rank"], self._open & ~self._prefill
        for request, stream in list(self._streams.items()):
            stays = rank_of[request] == stream.from_rank and self._prefill[stream.from_rank]
            leads = stays and decode[stream.to_rank]
            if not leads and not stream.is_void:
                self._count(request, stream.to_rank, -1, stream.tokens)
                stream.is_void = True
            if stream.is_void and stream.there_ns <= end_ns:
                self._drop(request)

    def _drop(self, request: int) -> _Stream:
        """Forget a request's way; its next rank's blocks are free."""
        stream = self._streams.pop(request)
        if stream.part:
            self._in_flight.end(stream.from_rank, stream.part)
        self._schedulers.arrays.ranks[stream.to_rank]["free_blocks"] += stream.blocks
        if not stream.is_void:
            self._count(request, stream.to_rank, -1, stream.tokens)
        return stream

    def _send_on(self) -> None:
        arrays, decode = self._schedulers.arrays, self._open & ~self._prefill
        if not decode.any():
            return
        leaving = [
            (rank, request)
            for rank in np.flatnonzero(self._prefill).tolist()
            for request in arrays.running[rank, : arrays.ranks[rank]["running_count"]].tolist()
            if not arrays.requests[request]["is_prefill"]
        ]
        arrays.ranks["is_open"] = decode
        for rank, request in leaving:
            stream = self._streams.get(request)
            if stream is None or not stream.is_void:
                self._leave(request, rank)
        self._let_prefill()

    def _leave(self, request: int, from_rank: int) -> None:
        """Take a request out of its rank; what is left to send goes before the next step."""
        arrays, block_tokens = self._schedulers.arrays, self._schedulers.bounds.block_tokens
        kernel.abort(arrays, self._schedulers.cache, request)
        state = arrays.requests[request]
        computed = int(state["tokens"]) - 1
        state["computed"], state["received"] = 0, computed
        if request in self._streams:
            stream = self._drop(request)
            arrays.ranks[stream.to_rank]["free_blocks"] -= stream.blocks
        else:
            figures = self._schedulers.weighed(request)
            to_rank = choose_rank(**figures)
            assert to_rank is not None, "a rank that decodes is open"
            cached = min(computed, int(figures["hit_tokens"][to_rank]))
            stream = _Stream(
                from_rank=from_rank, to_rank=to_rank, tokens=computed, sent=cached, blocks=0
            )
        self._count(request, stream.to_rank, 1)
        rest = computed - stream.sent
        held = -(-computed // block_tokens) - stream.sent // block_tokens if rest else 0
        stream.last_blocks = max(stream.last_blocks, held)
        arrays.ranks[from_rank]["free_blocks"] -= stream.last_blocks
        if rest:
            self._rests.append(_Rest(request, stream, rest))
        else:
            heappush(self._on_way, _on_way(request, stream))

    def _count(self, request: int, rank: int, requests: int, tokens: int | None = None) -> None:
        """Count a request that is to come among those that wait on its rank, or no more."""
        arrays = self._schedulers.arrays
        state = arrays.requests[request]
        counted = int(state["tokens"]) if tokens is None else tokens
        arrays.waiting_tokens[rank, state["level"]] += requests * counted
        arrays.waiting_requests[rank, state["level"]] += requests

    def receive(self, now_ns: int) -> None:
        """Before a step that begins now: queue requests whose KV is there, and send what may go."""
        while self._parts and self._parts[0].there_ns <= now_ns:
            part = heappop(self._parts)
            self._in_flight.end(part.from_rank, part.tokens)
            self.joules += part.joules
        self._drop_ended(now_ns)
        waiting, self._rests = self._rests, []
        for rest in waiting:
            request, stream, tokens = rest
            if not self._in_flight.may_go(stream.from_rank, tokens):
                self._rests.append(rest)
                continue
            self._in_flight.begin(stream.from_rank, tokens)
            cost = self._cost(stream, tokens)
            there_ns = max(now_ns, stream.there_ns) + cost.duration_ns
            self._sent(stream, tokens, there_ns, cost.joules)
            heappush(self._on_way, _on_way(request, stream))
        while self._on_way and self._on_way[0].there_ns <= now_ns:
            self._queue(heappop(self._on_way))

    def _queue(self, there: KvOnWay) -> None:
        self._count(there.request, there.to_rank, -1)
        arrays, bounds = self._schedulers.arrays, self._schedulers.bounds
        arrays.ranks[there.from_rank]["free_blocks"] += there.from_blocks
        arrays.ranks[there.to_rank]["free_blocks"] += there.to_blocks
        kernel.put_in(arrays, bounds, there.request, there.to_rank)

    def _count_ready(self, pending: Int64s, decodes: Int64s) -> None:
        """Count waiting requests whose KV is there as decodes, not as prefills, both [ranks]."""
        arrays, bounds = self._schedulers.arrays, self._schedulers.bounds
        enough = self._schedulers.policy.pending_tokens_max
        for rank in np.flatnonzero(arrays.ranks["waiting_count"]).tolist():
            waiting = arrays.requests[migration.waiting_requests(arrays, rank)]
            ready = waiting["received"] > 0
            if not ready.any():
                continue
            decodes[rank] += ready.sum()
            running = arrays.requests[arrays.running[rank, : arrays.ranks[rank]["running_count"]]]
            prefills = running[running["is_prefill"]]
            seats = bounds.seats - len(running)
            started = int((prefills["tokens"] - prefills["computed"]).sum())
            startable = int(waiting[~ready]["tokens"][:seats].sum())
            free = int(arrays.ranks[rank]["free_blocks"]) * bounds.block_tokens
            pending[rank] = min(started + min(startable, free), enough)

    def follow(self, up: Bools, closed: Bools, lost: Sequence[int]) -> None:
        """Ranks open and close, or are lost with what they hold; before requests move.

        A request on its way from or to a rank that is gone waits on its next one without its KV.
        """
        self._open = up & ~closed
        self._let_prefill()
        gone = ~up
        gone[list(lost)] = True
        if not gone.any():
            return
        for request, stream in list(self._streams.items()):
            if gone[stream.from_rank] or gone[stream.to_rank]:
                self._drop(request)
        without_kv = [each for each in self._on_way if _is_of(each, gone)]
        for request, stream, _ in self._rests:
            if _is_of(stream, gone):
                without_kv.append(_on_way(request, stream))
        for part in self._parts:
            if _is_of(part, gone):
                self._in_flight.end(part.from_rank, part.tokens)
        self._rests = [each for each in self._rests if not _is_of(each.stream, gone)]
        self._parts = [each for each in self._parts if not _is_of(each, gone)]
        self._on_way = [each for each in self._on_way if not _is_of(each, gone)]
        heapify(self._parts)
        heapify(self._on_way)
        for each in without_kv:
            self._schedulers.arrays.requests[each.request]["received"] = 0
            self._queue(each)

    def _let_prefill(self) -> None:
        """Open the ranks that take prompts; all, if none of them is open."""
        prefill = self._open & self._prompts
        self._schedulers.arrays.ranks["is_open"] = prefill if prefill.any() else self._open


def _on_way(request: int, stream: _Stream) -> KvOnWay:
    return KvOnWay(
        there_ns=stream.there_ns,
        request=request,
        from_rank=stream.from_rank,
        to_rank=stream.to_rank,
        from_blocks=stream.last_blocks,
        to_blocks=stream.blocks,
    )


def _is_of(each: KvOnWay | _SimulatedKvPart | _Stream, ranks: Bools) -> bool:
    return bool(ranks[each.from_rank] or ranks[each.to_rank])
