"""A Ray actor with one chip.

Ray owns the actor's life; step data goes over the channel. The chip's loop is one long call in the
actor's only thread: Ray wakes an idle actor 100 times a second, which for 144 took a fifth of two
cores.
"""

import ctypes
import socket
from pathlib import Path

from emulator.actors.channel import ChannelClient
from emulator.actors.chip_loop import ChipLoop
from emulator.actors.chip_watch import ready
from emulator.chip.chip import Chip
from emulator.chip.chip_share import ChipShare, load_chip
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
        self._share = share
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
            ChipLoop(self._number, self._chip, self._share, client).run()
        except (EOFError, OSError):  # the hub is gone, and with it the engine
            pass
        finally:
            client.close()
