"""Ranks that compute prompts and ranks that decode: who takes a request, and when it goes on.

A request comes to a rank that prefills; with its first token it goes on to one that decodes. Its KV
goes there while the prompt is computed (`kv_streams`), or after it (`kv_connector`). Where no rank
of a role is there, those of the other do its work: a request never waits for a role.

Roles change between two steps, as the load or the operator says. Prompts that are not begun are
shared anew among the ranks that then prefill. A rank that prefills no more keeps what it has begun;
one that decodes no more sends its requests on with their KV.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from emulator.errors import ConfigError
from emulator.specs.step import KvMove, KvPull, KvTransfer
from serving.engine.step_report import StepReport
from serving.plugin import request_migration as migration
from serving.plugin.engine_kv_connector import EngineKvConnector
from serving.plugin.kv_connector import BegunTransfers, PromptKv, RankKvConnector, brings_kv
from serving.plugin.kv_streams import KvStreams
from serving.policy.kv_in_flight import KvInFlight
from serving.policy.rank_roles import (
    AUTO,
    RankRole,
    RoleDecider,
    RoleLoad,
    Roles,
    first_roles,
    with_role,
)

Flags = NDArray[np.bool_]

logger = logging.getLogger(f"vllm.{__name__}")


class Placing(NamedTuple):
    """How requests come to ranks, bool[ranks].

    `open_ranks`: that may take one; `put` gives it one of some, if there is any; `send` any rank,
    or lets it wait; `arrival` is its order.
    """

    open_ranks: Callable[[Request], Flags]
    put: Callable[[Request, Flags], bool]
    send: Callable[[Request], None]
    arrival: Callable[[Request], int]


class RankRoles:
    """Roles of `ranks`. With `prefill_ranks` all have connectors; without any, all do both."""

    def __init__(
        self,
        ranks: list[Scheduler],
        prefill_ranks: int | str,
        kv_cache_config: KVCacheConfig,
        placing: Placing,
    ) -> None:
        self._ranks = ranks
        self._placing = placing
        self._decider: RoleDecider | None = None
        if prefill_ranks == AUTO:
            first = ranks[0]
            self._decider = RoleDecider(
                step_tokens=first.max_num_scheduled_tokens, seats=first.max_num_active_reqs
            )
        self.may_change = bool(prefill_ranks)
        self._take(first_roles(prefill_ranks, len(ranks)))
        (group,) = kv_cache_config.kv_cache_groups
        layer_bytes = group.kv_cache_spec.page_size_bytes // group.kv_cache_spec.block_size
        in_flight = KvInFlight(len(ranks), layer_bytes * len(group.layer_names))
        self._streams = KvStreams(ranks, in_flight)
        self._kv = PromptKv(in_flight)
        self._to_rank: dict[str, int] = {}  # of transfers under way
        self._exchanges: list[EngineKvConnector] = []
        for number, rank in enumerate(ranks):
            if isinstance(rank.connector, RankKvConnector):
                rank.connector.join(number, self._kv)
            elif isinstance(rank.connector, EngineKvConnector):
                rank.connector.join(number)
                self._exchanges.append(rank.connector)

    def _take(self, roles: Roles) -> None:
        self.roles = roles
        self._prefill: Flags = np.array([role is RankRole.PREFILL for role in roles])
        self._prompts: Flags = np.array([role is not RankRole.DECODE for role in roles])

    @property
    def exchange(self) -> EngineKvConnector | None:
        """The first rank's way to other engines, if there is one."""
        return self._exchanges[0] if self._exchanges else None

    @property
    def are_apart(self) -> bool:
        """Whether some ranks prefill alone."""
        return bool(self._prefill.any())

    def takes(self, ranks: Flags) -> Flags:
        """Those of `ranks` that take a request whose tokens are to be computed."""
        prompts: Flags = ranks & self._prompts
        return prompts if prompts.any() else ranks

    def go_on(self, report: StepReport | None, up: Flags, *, computed: bool) -> None:
        """After vLLM's update, of a step that `computed` tokens or of none: change roles, and let
        requests that have their next token go on from ranks that prefill. `up`: ranks that take
        requests.
        """
        for rank, role in report.role_changes if report is not None else ():
            try:
                roles = with_role(self.roles, rank, role)
            except ConfigError as error:  # by the load, roles have changed since it was asked for
                logger.warning("rank %d keeps its role: %s", rank, error)
            else:
                self._change(roles)
        if self._decider is not None:
            if not any(map(_has_requests, self._ranks)):
                self._decider.note_idle()
            if computed and report is not None:
                self._look(self._decider, report.end_s)
        if self.are_apart:
            decode: Flags = up & ~self._prefill
            self._streams.keep_to(decode.__getitem__)
            self._send_on()

    def _look(self, decider: RoleDecider, now_s: float) -> None:
        if decider.is_due(now_s):
            self._change(decider.decide(self.roles, self._load(), now_s))

    def _load(self) -> RoleLoad:
        prompt_tokens = decodes = 0
        for rank in self._ranks:
            for request in rank.requests.values():
                left = request.num_tokens - request.num_computed_tokens
                if request.is_finished():  # and its KV is still on its way to it
                    continue
                if (request.num_output_tokens and left <= 1) or brings_kv(rank, request):
                    decodes += 1
                else:
                    prompt_tokens += left
        return RoleLoad(prompt_tokens=prompt_tokens, decodes=decodes)

    def _change(self, roles: Roles) -> None:
        """Take other roles; where other ranks prefill, they share the prompts not begun anew."""
        before = self._prompts
        self._take(roles)
        self._streams.keep_from(self._prefill.__getitem__)
        if (before == self._prompts).all():
            return
        moving = [
            request
            for number in np.flatnonzero(before).tolist()
            for request in migration.take_prompts(self._ranks[number])
        ]
        for request in sorted(moving, key=self._placing.arrival):
            self._streams.abandon(request)  # of a prompt that was preempted
            self._placing.send(request)
        for number in np.flatnonzero(self._prompts).tolist():
            migration.restore_order(self._ranks[number], self._placing.arrival)

    def _send_on(self) -> None:
        leaving: list[tuple[Request, Flags, bool]] = []
        for number in np.flatnonzero(self._prefill).tolist():
            rank = self._ranks[number]
            for request in [each for each in rank.running if _can_go_on(each)]:
                ranks: Flags = self._placing.open_ranks(request) & ~self._prefill
                to_rank = self._streams.leads_to(request, ranks.__getitem__)
                if to_rank is not None:
                    ranks = np.arange(len(ranks)) == to_rank
                    self._streams.leave(request)
                elif ranks.any() and not self._streams.waits_for_end(request):
                    self._kv.hold(number, rank, request)
                else:
                    continue
                migration.take_one(rank, request)
                leaving.append((request, ranks, to_rank is not None))
        for request, ranks, has_stream in leaving:
            if has_stream:
                self._streams.arrive(request)
            assert self._placing.put(request, ranks), "a rank that is open takes it"

    def begun(
        self,
        decisions: Sequence[SchedulerOutput],
        choose: Callable[[Request, Flags], int | None],
    ) -> tuple[KvMove, ...]:
        """The transfers that begin with a lockstep's decisions; `choose` gives one of the ranks."""
        if not (self.may_change or self._exchanges):
            return ()

        def next_rank(request: Request) -> int | None:
            if not _may_go_on(request):
                return None
            return choose(request, self._placing.open_ranks(request) & ~self._prefill)

        begun: list[KvMove] = []
        for decision in decisions:
            meta = decision.kv_connector_metadata
            begun += meta.transfers if isinstance(meta, BegunTransfers) else ()
        self._to_rank |= {
            each.request_id: each.to_rank
            for each in begun
            if isinstance(each, KvTransfer) or (isinstance(each, KvPull) and not each.is_there)
        }
        begun += self._streams.begin_rests()
        for number in np.flatnonzero(self._prefill).tolist():
            begun += self._streams.begin(number, decisions[number], next_rank)
        return tuple(begun)

    def ended(self, report: StepReport | None) -> Mapping[int, KVConnectorOutput]:
        """What the connectors of ranks hear of transfers that have ended."""
        outputs: dict[int, KVConnectorOutput] = {}
        if report is None:
            return outputs
        for names, has_failed in ((report.kv_received, False), (report.kv_failed, True)):
            for name in names:
                if not self._streams.end_part(name, has_failed=has_failed):
                    _tell(outputs, self._to_rank.pop(name), name, has_failed=has_failed)
        for stream, has_failed in self._streams.take_over():
            name = stream.request.request_id
            _tell(outputs, stream.to_rank, name, has_failed=has_failed)
        return outputs

    @property
    def hold_kv(self) -> bool:
        """Whether blocks of a rank are held for a request of another, or of another engine."""
        return bool(self._kv or self._streams) or any(each.holds_kv for each in self._exchanges)

    @property
    def coming(self) -> Iterator[tuple[int, Request, int]]:
        """The next rank of each request whose KV goes ahead of it, and the tokens of that KV."""
        return self._streams.coming

    def lose(self, ranks: Collection[int]) -> None:
        """Forget what ranks hold that lost it."""
        for rank in ranks:
            self._kv.lose(rank)
        for each in (self._exchanges[rank] for rank in ranks if self._exchanges):
            each.lose()
        self._streams.lose(set(ranks))


def _has_requests(rank: Scheduler) -> bool:
    return any(rank.get_request_counts())


def _tell(outputs: dict[int, KVConnectorOutput], rank: int, name: str, *, has_failed: bool) -> None:
    output = outputs.setdefault(rank, KVConnectorOutput(finished_recving=set()))
    assert output.finished_recving is not None
    output.finished_recving.add(name)  # a failed one, too, has ended
    if has_failed:
        output.failed_recving.add(name)


def _may_go_on(request: Request) -> bool:
    """Whether there is a next rank for a request.

    Further input of a streaming session would find its rank changed; a request that asked for
    scores of its prompt reads no KV that it has not computed itself; one with a last token to get
    ends where it is.
    """
    has_more = request.num_output_tokens + 1 < request.max_tokens
    return has_more and not request.resumable and not request.skip_reading_prefix_cache


def _can_go_on(request: Request) -> bool:
    """Whether all tokens but the last, which is new, are computed, and vLLM can load them."""
    return (
        bool(request.num_output_tokens)
        and request.num_computed_tokens == request.num_tokens - 1
        and not request.resumable
        and not request.skip_reading_prefix_cache
    )
