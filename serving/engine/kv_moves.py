"""Keys and values of prompts on their way from the ranks that computed them to those that decode.

A transfer begins with the decision that gave it blocks, takes what it takes on idle links, and is
carried out by the chips at its end: its first rank holds the blocks until then, and a chip that is
lost before takes them with it. Parts of a request follow each other; one that goes layer by layer
with a step is timed when the step has ended, and may be read before its last layer is there. The
scheduler hears of an end in a step's report. What another engine computed comes by the same ways
(`remote_kv`), and later than it would where its bytes are late.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.errors import ChipLost, ConfigError
from emulator.fabric.kv_transfer import layered_ready_ns
from emulator.fleet import Fleet
from emulator.specs.seating import VACANT
from emulator.specs.step import KvAwait, KvMove, KvPull, KvPush, KvRelease, KvTransfer
from emulator.ultraserver.handover_cost import HandoverCost, kv_between_engines
from emulator.units import NS_PER_S
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine
from serving.engine.remote_kv.remote_kv import RemoteKv

_NOT_HERE: Final = "KV of %s is computed here: %s"

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTotals:
    """Transfers of requests' KV that were completed, or lost, since the start: one that goes again
    counts again, and of two engines both count. Seconds are those of each of their parts on idle
    links, side by side or not; joules are beyond idle chips.
    """

    kv_transfers: int = 0
    kv_transfers_failed: int = 0
    kv_transfer_bytes: int = 0
    kv_transfer_joules: float = 0.0
    kv_transfer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    transfer: KvTransfer | KvPull
    end_ns: int
    cost: HandoverCost


class KvMoves:
    """Transfers of a live machine, each booked once, at its end, or part by part where these come
    before their request; to and from other engines by `remote`. `weights` names each rank's.
    """

    def __init__(
        self,
        live: LiveMachine,
        ledger: Ledger,
        remote: RemoteKv | None = None,
        weights: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._live = live
        self._ledger = ledger
        self._remote = remote
        self._weights = weights
        self._under_way: list[_UnderWay] = []
        self._with_step: list[KvTransfer] = []
        self._pushes: list[KvPush] = []
        self._received: list[str] = []
        self._failed: list[str] = []
        self._done = self._lost = 0
        self._sent = HandoverCost()
        if remote is not None:
            remote.arrivals.ask(weights_of=self._weights_of, part_ns=self._part_ns)

    @property
    def next_ns(self) -> int | None:
        """When the next request's KV is there, or, if none's ends, a part; None without any."""
        ends = [
            (not each.transfer.is_last, each.end_ns)
            for each in self._under_way
            if self._is_here(each.transfer)
        ]
        return min(ends)[1] if ends else None

    @property
    def remote(self) -> RemoteKv | None:
        """The exchange with other engines while it goes on: KV is held for one, or comes."""
        remote = self._remote
        return remote if remote is not None and (remote.holds or self._under_way) else None

    @property
    def totals(self) -> KvTotals:
        """Of those that have ended."""
        return KvTotals(
            kv_transfers=self._done,
            kv_transfers_failed=self._lost,
            kv_transfer_bytes=self._sent.bytes_links,
            kv_transfer_joules=self._sent.joules,
            kv_transfer_s=self._sent.duration_ns / NS_PER_S,
        )

    def begin(self, transfers: Iterable[KvMove], now_ns: int) -> None:
        """Let transfers begin now, or with the step that begins."""
        before_ns = self._last_ends_ns()
        if self._remote is not None:
            self._remote.look(self._live, self._weights_of, now_ns)
            self._book_remote(self._remote)
        for each in transfers:
            if not isinstance(each, KvTransfer):
                self._begin_remote(each, now_ns)
            elif each.with_step:
                self._with_step.append(each)
            else:
                cost = self._cost(each)
                begin_ns = max(now_ns, before_ns.get(each.request_id, 0))
                self._add(each, begin_ns + cost.duration_ns, cost)

    def keep_leases(self, now_ns: int) -> None:
        """In a step that is held: other engines' leases and this one's begin anew and end."""
        if self._remote is not None:
            self._remote.keep_leases(now_ns)

    def computed(self, begin_ns: int, end_ns: int, lost_ranks: Collection[int]) -> None:
        """Time those that go with a step, which took from begin to end; those of `lost_ranks` and
        of ranks that are down fail.
        """
        if self._pushes:
            self._push(end_ns - begin_ns, lost_ranks)
        if not self._with_step:
            return
        self._fail(lost_ranks)
        layers, before_ns = self._live.machine.model.layers, self._last_ends_ns()
        for each in self._with_step:
            cost = self._cost(each)
            there_ns = layered_ready_ns(
                begin_ns=begin_ns,
                end_ns=end_ns,
                free_ns=before_ns.get(each.request_id, 0),
                transfer_ns=cost.duration_ns,
                layers=layers,
            )
            self._add(each, there_ns, cost)
        self._with_step = []

    def _push(self, step_ns: int, lost_ranks: Collection[int]) -> None:
        """Send other engines what a step has computed for them, but for lost ranks."""
        assert self._remote is not None
        pushes, self._pushes = self._pushes, []
        lost = self._all_lost(lost_ranks)
        for each in pushes:
            if each.rank in lost and each.blocks:
                continue
            try:
                weights = self._weights_of(each.rank)
                self._remote.push(each, self._live, weights=weights, step_ns=step_ns)
            except ChipLost:  # which the next step meets
                continue

    def _part_ns(
        self, *, tokens: int, from_chips: int, begin_ns: int, end_ns: int, free_ns: int
    ) -> int:
        """When a part is here that another engine's step computed; raises ConfigError."""
        return layered_ready_ns(
            begin_ns=begin_ns,
            end_ns=end_ns,
            free_ns=free_ns,
            transfer_ns=self._cost_here(tokens, from_chips).duration_ns,
            layers=self._live.machine.model.layers,
        )

    def _begin_remote(self, transfer: KvPull | KvPush | KvAwait | KvRelease, now_ns: int) -> None:
        assert self._remote is not None, "no other engine is known"
        match transfer:
            case KvPull():
                self._begin_pull(self._remote, transfer, now_ns)
            case KvPush():  # of a step; an empty one, of none, can wait for the next one's end
                self._pushes.append(transfer)
            case KvAwait():
                self._remote.await_room(transfer)
            case KvRelease():
                self._remote.release(transfer)

    def _begin_pull(self, remote: RemoteKv, transfer: KvPull, now_ns: int) -> None:
        if transfer.is_there:
            self._read_pushed(remote, transfer)
            return
        pushed = remote.arrivals.taken(transfer.request_id)
        if pushed is not None:
            self._add(transfer, max(now_ns, pushed.there_ns), HandoverCost())  # booked by part
            return
        try:
            cost = self._cost_here(transfer.tokens, transfer.from_chips)
        except ConfigError as error:  # no such engine is in this system
            logger.warning(_NOT_HERE, transfer.request_id, error)
            self._give_up([transfer])
            return
        remote.pull(transfer, self._weights_of(transfer.to_rank))
        self._add(transfer, now_ns + cost.duration_ns, cost)

    def _read_pushed(self, remote: RemoteKv, transfer: KvPull) -> None:
        """Carry out what is there, for the step that begins; a chip that is lost is that step's."""
        try:
            self._carry_out(transfer)
            self._done += 1
        except ChipLost as loss:
            self._live.meet(loss.chips)
            remote.end(transfer, taken=False)

    def _cost_here(self, tokens: int, from_chips: int) -> HandoverCost:
        """What this engine bears of KV from another one; raises ConfigError."""
        machine = self._live.machine
        _, cost = kv_between_engines(
            machine.system,
            machine.model,
            tokens=tokens,
            from_chips=from_chips,
            to_chips=machine.partition.tp,
        )
        return cost

    def _give_up(self, transfers: Sequence[KvTransfer | KvPull]) -> None:
        """Have the prompts of transfers that failed computed again."""
        self._failed += [each.request_id for each in transfers]
        self._lost += len({each.request_id for each in transfers})
        for each in transfers:
            if isinstance(each, KvPull) and self._remote is not None:
                self._remote.end(each, taken=False)

    def _weights_of(self, rank: int) -> str:
        """The hash in the name of a rank's weights: engines number their versions each."""
        return self._weights()[rank].rpartition("-")[2]

    def _is_here(self, transfer: KvTransfer | KvPull) -> bool:
        """Whether what a transfer brings is at hand, or will never be."""
        if isinstance(transfer, KvTransfer):
            return True
        assert self._remote is not None
        return self._remote.came(transfer)

    def _cost(self, transfer: KvTransfer) -> HandoverCost:
        return self._live.machine.sending_kv(
            from_rank=transfer.from_rank, to_rank=transfer.to_rank, tokens=transfer.tokens
        )

    def _last_ends_ns(self) -> dict[str, int]:
        """When the parts under way of each request are there."""
        return {each.transfer.request_id: each.end_ns for each in self._under_way}

    def _add(self, transfer: KvTransfer | KvPull, end_ns: int, cost: HandoverCost) -> None:
        self._under_way.append(_UnderWay(transfer=transfer, end_ns=end_ns, cost=cost))

    def end(self, now_ns: int, lost_ranks: Collection[int]) -> tuple[int, ...]:
        """Carry out what has ended by now, but for transfers of `lost_ranks` and of ranks that are
        down, which fail.

        Returns further ranks that were lost meanwhile: a transfer of theirs fails too.
        """
        if not self._under_way:
            return ()
        self._fail(lost_ranks)
        due = sorted(
            (each for each in self._under_way if each.end_ns <= now_ns),
            key=lambda each: each.end_ns,
        )
        due = [each for each in due if self._is_here(each.transfer)]
        found: tuple[int, ...] = ()
        for each in due:
            if each not in self._under_way:  # its rank was lost on the way of another
                continue
            try:
                self._carry_out(each.transfer)
            except ConnectionError as error:  # another engine's blocks are lost
                logger.warning(_NOT_HERE, each.transfer.request_id, error)
                self._under_way.remove(each)
                self._give_up([each.transfer])
            except ChipLost as loss:
                self._live.meet(loss.chips)
                more = self._live.take_lost_ranks()
                self._fail(more)
                found += more
            else:
                self._under_way.remove(each)
                self._received.append(each.transfer.request_id)
                self._book(each)
        return found

    def take_ended(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Requests whose KV is there, and those whose will never be, since last asked."""
        received, failed = tuple(self._received), tuple(self._failed)
        self._received, self._failed = [], []
        return received, failed

    def _all_lost(self, lost_ranks: Collection[int]) -> set[int]:
        """With the ranks that are down."""
        return {*lost_ranks, *np.flatnonzero(~self._live.machine.ranks_up).tolist()}

    def _fail(self, lost_ranks: Collection[int]) -> None:
        lost = self._all_lost(lost_ranks)
        transfers = [*(each.transfer for each in self._under_way), *self._with_step]
        failed = [each for each in transfers if self._has_failed(each, lost)]
        self._under_way = [each for each in self._under_way if each.transfer not in failed]
        self._with_step = [each for each in self._with_step if each not in failed]
        self._give_up(failed)

    def _has_failed(self, transfer: KvTransfer | KvPull, lost: Collection[int]) -> bool:
        if isinstance(transfer, KvTransfer):
            return transfer.from_rank in lost or transfer.to_rank in lost
        assert self._remote is not None
        return transfer.to_rank in lost or self._remote.has_failed(transfer)

    def _carry_out(self, transfer: KvTransfer | KvPull) -> None:
        fleet = self._live.tokens
        if isinstance(transfer, KvPull):
            assert self._remote is not None
            self._remote.take(transfer, self._live)
            self._remote.end(transfer, taken=True)
        elif isinstance(fleet, Fleet):
            fleet.send_kv(transfer)

    def _book(self, ended: _UnderWay) -> None:
        transfer = ended.transfer
        ranks = [transfer.to_rank]
        if isinstance(transfer, KvTransfer):
            ranks.append(transfer.from_rank)
        self._charge(ended.cost, ranks)
        self._done += transfer.is_last

    def _book_remote(self, remote: RemoteKv) -> None:
        """Book what has gone to other engines, and what they have pushed here."""
        machine = self._live.machine
        for came in remote.arrivals.take_came():
            self._charge(self._cost_here(came.tokens, came.from_chips), [came.rank])
        for sent in remote.take_sent():
            try:
                cost, _ = kv_between_engines(
                    machine.system,
                    machine.model,
                    tokens=sent.tokens,
                    from_chips=machine.partition.tp,
                    to_chips=sent.to_chips,
                )
            except ConfigError as error:  # as the other engine says of itself
                logger.warning("KV that went to another engine is not booked: %s", error)
                continue
            self._charge(cost, [sent.rank])
            self._done += sent.is_last

    def _charge(self, cost: HandoverCost, ranks: Iterable[int]) -> None:
        machine = self._live.machine
        positions = [chip for rank in ranks for chip in machine.partition.chips_of_rank(rank)]
        chips = machine.seating.chip_of_position[positions]
        self._ledger.charge(cost.joules, chips[chips != VACANT].tolist())
        self._sent += cost
