"""A Ray actor with one chip: a loop of command, decision, answer.

Ray owns the actor's life; step data goes over the channel. The loop is one long call in the actor's
only thread: Ray wakes an idle actor 100 times a second, which for 144 took a fifth of two cores.
"""

import ctypes
import socket
import time
import traceback
from pathlib import Path

from emulator.actors.channel import ChannelClient, HubGone
from emulator.actors.chip_exchange import ChipExchange
from emulator.actors.chip_watch import ready
from emulator.actors.codec import Message
from emulator.actors.exchange_segment import ExchangeSegment
from emulator.chip.chip import Chip
from emulator.chip.chip_share import ChipShare, load_chip, load_slots, renew_chip
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
from emulator.chip.effects import ChipFailed, CommandDone, Condition
from emulator.chip.training_chip import TrainingChip
from emulator.chip.training_share import TrainingShare, load_training_chip
from emulator.errors import CheckpointError

# Their numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8

_LARGEST_BYTES = (1 << 31) - 1
"""The largest C int, which mallopt takes."""

_TOP_PAD_BYTES = 64 << 20
"""Least growth of the heap."""


def keep_freed_memory() -> bool:
    """Keep memory that a step has freed for the next, on glibc; returns whether it worked.

    Otherwise glibc returns each large array to the system, whose pages must be fetched and zeroed
    anew: a fifth of a training step's time. The process holds its peak memory until it ends.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library: slower, and otherwise the same
        return False
    settings = {
        _M_MMAP_MAX: 0,  # no array gets a mapping of its own, which ends with it
        _M_ARENA_MAX: 1,  # threads that come later share the heap that is kept
        _M_TRIM_THRESHOLD: _LARGEST_BYTES,
        _M_TOP_PAD: _TOP_PAD_BYTES,
    }
    done = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(done)


_SMAPS = Path("/proc/self/smaps_rollup")


class ChipWorker:
    """Chip number `chip`, with its `share` of the model.

    Raises CheckpointError when the checkpoint is not on this node, or cannot be computed.
    """

    def __init__(
        self, *, chip: int, address: str, key: bytes, share: ChipShare | TrainingShare
    ) -> None:
        if not Path(share.weights_dir).is_dir():
            where = socket.gethostname()
            raise CheckpointError(f"{share.weights_dir}: there is no such directory on {where}")
        self._number = chip
        self._address = address
        self._key = key
        self._cpu_s = 0.0
        self._share = share
        self._exchange: ChipExchange | None = None
        self._chip: Chip | TrainingChip
        if isinstance(share, TrainingShare):
            keep_freed_memory()
            self._chip = load_training_chip(share)
        else:
            self._chip = load_chip(share)

    def wait_loaded(self) -> None:
        """Return once the share is loaded: Ray answers no call before the actor is made."""

    def serve(self) -> None:
        """Answer the hub's commands until `StopChip`, the hub's end, or a failed command."""
        try:
            client = ChannelClient(self._address, self._key, self._number)
        except OSError:  # the hub is gone, or not ours; it will miss this chip
            return
        try:
            client.send(ready(self._number))
            self._answer(client)
        except (EOFError, OSError):  # the hub is gone, and with it the engine
            pass
        finally:
            client.close()

    def _answer(self, client: ChannelClient) -> None:
        hanging = False
        while not isinstance(command := client.receive(), StopChip):
            hanging = hanging or isinstance(command, Hang)
            if hanging:
                continue
            try:
                effect = self._carry_out(command, client)
            except HubGone:
                raise
            except Exception:  # noqa: BLE001  the hub must learn of it; the chip is lost from here on
                client.send(ChipFailed(reason=traceback.format_exc()))
                return
            client.send(effect)

    def _carry_out(self, command: Message, client: ChannelClient) -> Message:
        if isinstance(command, ReportCondition):
            return self._condition()
        if isinstance(command, JoinExchange):
            return self._join(command, client)
        if self._exchange is not None and isinstance(command, BeginStep | RepeatStep | JoinStep):
            return self._exchange.run(command)
        if isinstance(self._chip, Chip) and isinstance(self._share, ChipShare):
            if isinstance(command, LoadWeights):
                self._share, effect = renew_chip(self._chip, self._share, command)
                return effect
            if isinstance(command, LoadExperts):
                return load_slots(self._chip, self._share, command)
        return self._handle(command)

    def _handle(self, command: Message) -> Message:
        started_s = time.thread_time()
        effect = self._chip.handle(command)  # type: ignore[arg-type]
        self._cpu_s += time.thread_time() - started_s
        return effect

    def _join(self, command: JoinExchange, client: ChannelClient) -> CommandDone:
        assert isinstance(self._share, ChipShare), "chips that train have a hub"
        self._exchange = ChipExchange(
            ExchangeSegment.join(command),
            chip=self._number,
            tp=self._share.tp,
            tp_index=self._share.tp_index,
            handle=self._handle,  # type: ignore[arg-type]
            check_hub=client.check_hub,
        )
        return CommandDone()

    def _condition(self) -> Condition:
        lines = (line.split() for line in _SMAPS.read_text(encoding="ascii").splitlines()[1:])
        kilobytes = {fields[0]: int(fields[1]) for fields in lines}
        return Condition(
            cpu_s=self._cpu_s,
            pss_bytes=kilobytes["Pss:"] * 1024,
            rss_bytes=kilobytes["Rss:"] * 1024,
        )
