"""What a chip's process does: a command, a decision, an answer.

Not a part of the actor, whose methods Ray wraps, each call of them.
"""

import time
import traceback
from pathlib import Path
from typing import Final

from emulator.actors.channel import ChannelClient, HubGone
from emulator.actors.chip_exchange import ChipExchange
from emulator.actors.codec import Message
from emulator.actors.exchange_segment import ExchangeSegment
from emulator.chip.chip import Chip
from emulator.chip.chip_share import ChipShare, load_slots, renew_chip
from emulator.chip.commands import (
    BeginStep,
    Hang,
    JoinExchange,
    JoinStep,
    LoadExperts,
    LoadWeights,
    RepeatStep,
    ReportCondition,
    StopChip,
)
from emulator.chip.effects import ChipFailed, Condition
from emulator.chip.training_chip import TrainingChip
from emulator.chip.training_share import TrainingShare

_SMAPS: Final = Path("/proc/self/smaps_rollup")


class ChipLoop:
    """Answers the commands that come from `client` for chip `number`, with its `share`."""

    def __init__(
        self,
        number: int,
        chip: Chip | TrainingChip,
        share: ChipShare | TrainingShare,
        client: ChannelClient,
    ) -> None:
        self._number = number
        self._chip = chip
        self._share = share
        self._client = client
        self._exchange: ChipExchange | None = None
        self._cpu_s = 0.0

    def run(self) -> None:
        """Go on until `StopChip` or a failed command.

        Raises EOFError or OSError when the hub is gone.
        """
        hanging = False
        while not isinstance(command := self._client.receive(), StopChip):
            hanging = hanging or isinstance(command, Hang)
            if hanging:
                continue
            try:
                effect = self._carry_out(command)
            except HubGone:
                raise
            except Exception:  # noqa: BLE001  the hub must learn of it; the chip is lost from here on
                self._client.send(ChipFailed(reason=traceback.format_exc()))
                return
            if effect is not None:
                self._client.send(effect)

    def _carry_out(self, command: Message) -> Message | None:
        """The answer to a command, if it has one."""
        if isinstance(command, ReportCondition):
            return self._condition()
        started_s = time.thread_time()
        try:
            return self._compute(command)
        finally:
            self._cpu_s += time.thread_time() - started_s

    def _compute(self, command: Message) -> Message | None:
        if isinstance(self._chip, Chip) and isinstance(self._share, ChipShare):
            if isinstance(command, LoadWeights):
                self._share, effect = renew_chip(self._chip, self._share, command)
                return effect
            if isinstance(command, LoadExperts):
                return load_slots(self._chip, self._share, command)
            if isinstance(command, JoinExchange):
                self._join(command, self._chip, self._share)
                return None
            if self._exchange and isinstance(command, BeginStep | RepeatStep | JoinStep):
                return self._exchange.run(command)
        return self._chip.handle(command)  # type: ignore[arg-type]

    def _join(self, command: JoinExchange, chip: Chip, share: ChipShare) -> None:
        self._exchange = ChipExchange(
            ExchangeSegment.join(command),
            chip,
            number=self._number,
            tp=share.tp,
            tp_index=share.tp_index,
            hub=self._client.fileno(),
        )

    def _condition(self) -> Condition:
        lines = (line.split() for line in _SMAPS.read_text(encoding="ascii").splitlines()[1:])
        kilobytes = {fields[0]: int(fields[1]) for fields in lines}
        return Condition(
            cpu_s=self._cpu_s,
            pss_bytes=kilobytes["Pss:"] * 1024,
            rss_bytes=kilobytes["Rss:"] * 1024,
        )
