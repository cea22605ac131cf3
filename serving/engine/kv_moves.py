"""Keys and values of prompts on their way from the ranks that computed them to those that decode.

A transfer begins with the decision that gave it blocks, takes what it takes on idle links, and is
carried out by the chips at its end: its first rank holds the blocks until then, and a chip that is
lost before takes them with it. The scheduler hears of its end in the report of a step.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from emulator.errors import ChipLost
from emulator.fleet import Fleet
from emulator.specs.seating import VACANT
from emulator.specs.step import KvTransfer
from emulator.ultraserver.handover_cost import HandoverCost
from emulator.units import NS_PER_S
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTotals:
    """Transfers that ended since the start. Seconds are each one's, side by side or not; joules are
    beyond idle chips.
    """

    kv_transfers: int = 0
    kv_transfers_failed: int = 0
    kv_transfer_bytes: int = 0
    kv_transfer_joules: float = 0.0
    kv_transfer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    transfer: KvTransfer
    end_ns: int
    cost: HandoverCost


class KvMoves:
    """Transfers of a live machine, each booked once, at its end."""

    def __init__(self, live: LiveMachine, ledger: Ledger) -> None:
        self._live = live
        self._ledger = ledger
        self._under_way: list[_UnderWay] = []
        self._received: list[str] = []
        self._failed: list[str] = []
        self._done = self._lost = 0
        self._sent = HandoverCost()

    @property
    def next_ns(self) -> int | None:
        """When the next transfer ends; None without any."""
        return min((each.end_ns for each in self._under_way), default=None)

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

    def begin(self, transfers: Iterable[KvTransfer], now_ns: int) -> None:
        """Let transfers begin now."""
        for each in transfers:
            cost = self._live.machine.sending_kv(
                from_rank=each.from_rank, to_rank=each.to_rank, tokens=each.tokens
            )
            self._under_way.append(
                _UnderWay(transfer=each, end_ns=now_ns + cost.duration_ns, cost=cost)
            )

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
        found: tuple[int, ...] = ()
        for each in due:
            if each not in self._under_way:  # its rank was lost on the way of another
                continue
            try:
                self._carry_out(each.transfer)
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

    def _fail(self, lost_ranks: Collection[int]) -> None:
        lost = {*lost_ranks, *np.flatnonzero(~self._live.machine.ranks_up).tolist()}
        left = []
        for each in self._under_way:
            if {each.transfer.from_rank, each.transfer.to_rank} & lost:
                self._failed.append(each.transfer.request_id)
                self._lost += 1
            else:
                left.append(each)
        self._under_way = left

    def _carry_out(self, transfer: KvTransfer) -> None:
        fleet = self._live.tokens
        if isinstance(fleet, Fleet):
            fleet.send_kv(transfer)

    def _book(self, ended: _UnderWay) -> None:
        transfer, cost, machine = ended.transfer, ended.cost, self._live.machine
        positions = [
            chip
            for rank in (transfer.from_rank, transfer.to_rank)
            for chip in machine.partition.chips_of_rank(rank)
        ]
        chips = machine.seating.chip_of_position[positions]
        self._ledger.charge(cost.joules, chips[chips != VACANT].tolist())
        self._done += 1
        self._sent += cost
