"""A fleet without processes: `Fleet` itself, with chips in this process.

Only Ray and the channel are replaced, by a host with real chips that can die or fall silent. A
killed chip's state is gone; its successor reads its share anew.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from emulator.actors.channel import Drained
from emulator.chip.chip_share import ChipShare, load_chip, load_slots, renew_chip
from emulator.chip.commands import Command, Hang, LoadExperts, LoadWeights, StopChip
from emulator.chip.effects import ChipReady, Effect
from emulator.errors import ChipLost, ChipSilent
from emulator.fleet import Fleet
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY


class LiveChip:
    """One chip in place of a Ray actor. It dies of the first command that is a `dies_of`."""

    def __init__(self, number: int, share: ChipShare) -> None:
        self.number = number
        self.share = share
        self.chip = load_chip(share)
        self.alive = True
        self.hanging = False
        self.dies_of: type[Command] | None = None

    def answer(self, command: Command) -> Effect | None:
        """The chip's answer; None when silent or dead."""
        if isinstance(command, StopChip) or (self.dies_of and isinstance(command, self.dies_of)):
            self.alive = False
        self.hanging = self.hanging or isinstance(command, Hang)
        if not self.alive or self.hanging:
            return None
        if isinstance(command, LoadWeights):
            self.share, answer = renew_chip(self.chip, self.share, command)
            return answer
        if isinstance(command, LoadExperts):
            return load_slots(self.chip, self.share, command)
        return self.chip.handle(command)


class _Host:
    """Replaces Ray's session and the channel; records every command."""

    address, key = "in this process", b""

    def __init__(self) -> None:
        self.chips: dict[int, LiveChip] = {}
        self.sent: list[tuple[int, Command]] = []
        self._replies: dict[int, list[Effect]] = {}

    # Ray's part.
    def place_chips(self, chips: int) -> list[None]:
        return [None] * chips

    def start_chip(self, *, chip: int, share: ChipShare, **_address: Any) -> LiveChip:
        self.chips[chip] = LiveChip(chip, share)
        self._replies[chip] = [ChipReady(chip=chip)]
        return self.chips[chip]

    def watch(self, lost: Callable[[str], None]) -> None:
        self.lost = lost

    def wait_loaded(self, chips: Collection[LiveChip], _timeout_s: float) -> None:
        assert all(chip.alive for chip in chips)

    def kill(self, actor: LiveChip) -> None:
        actor.alive = False

    def stop(self) -> None:
        self.chips.clear()

    # The channel's part.
    def accept(self, chips: Collection[int], _timeout_s: float) -> None:
        assert set(chips) <= self.chips.keys(), chips

    def send(self, chip: int, message: Any) -> None:
        if not self._is_connected(chip):
            raise ChipLost((chip,))
        self.sent.append((chip, message))
        reply = self.chips[chip].answer(message)
        if reply is not None:
            self._replies.setdefault(chip, []).append(reply)

    def send_all(self, messages: Mapping[int, Any]) -> None:
        lost = []
        for chip, message in messages.items():
            try:
                self.send(chip, message)
            except ChipLost:
                lost.append(chip)
        if lost:
            raise ChipLost(tuple(lost))

    def receive(self, chips: Collection[int], timeout_s: float) -> Iterator[tuple[int, Any]]:
        left = set(chips)
        for chip in sorted(chips):
            if self._replies.get(chip):
                left.discard(chip)
                yield chip, self._replies[chip].pop(0)
        dead = [chip for chip in left if not self._is_connected(chip)]
        if dead:
            raise ChipLost(tuple(sorted(dead)))
        if left:
            raise ChipSilent(tuple(sorted(left)), timeout_s)

    def drain(self, chips: Collection[int], _timeout_s: float) -> Drained:
        replies = {chip: self._replies[chip].pop(0) for chip in chips if self._replies.get(chip)}
        left = set(chips) - replies.keys()
        lost = {chip for chip in left if not self._is_connected(chip)}
        return Drained(replies=replies, lost=tuple(sorted(lost)), silent=tuple(sorted(left - lost)))

    def forget(self, chip: int) -> None:
        self.chips.pop(chip, None)
        self._replies.pop(chip, None)

    def close(self) -> None:
        self._replies.clear()

    def _is_connected(self, chip: int) -> bool:
        return chip in self.chips and self.chips[chip].alive


class InProcessFleet(Fleet):
    """A fleet without Ray. `host.chips` are its live chips, `host.sent` the commands.

    Chips die when killed, or at the first command they are doomed by.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.host = _Host()
        self._processes._ray = self.host  # type: ignore[assignment]

    def start(self) -> None:
        self._processes._channel = self.host  # type: ignore[assignment]
        self._start_chips(range(self.chips))

    def doom(self, chip: int, kind: type[Command]) -> None:
        """Let `chip` die at a command of `kind`, before it carries it out."""
        self.host.chips[chip].dies_of = kind


def prompts_on(ranks: int, tokens: int, block_ids: list[int]) -> list[RankStep]:
    """A first step: a greedy prompt of `tokens` on each rank, in `block_ids`."""
    return [
        RankStep(
            rank=rank,
            new=[
                NewRequest(
                    request_id=f"r{rank}",
                    token_ids=list(range(50 + rank, 50 + rank + tokens)),
                    prompt_tokens=tokens,
                    sampling=GREEDY,
                    block_ids=block_ids,
                )
            ],
            scheduled=[Scheduled(request_id=f"r{rank}", first_position=0, new_tokens=tokens)],
            finished=[],
        )
        for rank in range(ranks)
    ]
