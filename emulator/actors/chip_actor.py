"""One Ray actor that holds one chip: it waits for a command, lets the chip decide, answers.

Ray owns the actor's life; step data does not pass through Ray. The loop runs in a thread so that
the actor can still be asked how it is.
"""

import socket
import threading
import time
import traceback
from pathlib import Path

from emulator.actors.channel import Spoke
from emulator.chip.chip_share import ChipShare, load_chip, read_experts
from emulator.chip.commands import Command, Hang, LoadExperts, Stop
from emulator.chip.effects import Effect, Failed, Ready
from emulator.errors import CheckpointError

_SMAPS = Path("/proc/self/smaps_rollup")


class ChipActor:
    """Chip number `chip`, with its `share` of the model.

    Raises:
        CheckpointError: the checkpoint is not on this node, or cannot be computed.
    """

    def __init__(self, *, chip: int, address: str, key: bytes, share: ChipShare) -> None:
        if not Path(share.weights_dir).is_dir():
            where = socket.gethostname()
            raise CheckpointError(f"{share.weights_dir}: there is no such directory on {where}")
        self._number = chip
        self._cpu_s = 0.0
        self._share = share
        self._chip = load_chip(share)
        self._thread = threading.Thread(
            target=self._serve, args=(address, key), name=f"chip-{chip}", daemon=True
        )
        self._thread.start()

    def _serve(self, address: str, key: bytes) -> None:
        try:
            spoke = Spoke(address, key, self._number)
        except OSError:  # the hub is gone, or not ours; it will miss this chip
            return
        try:
            spoke.send(Ready(chip=self._number))
            self._answer(spoke)
        except (EOFError, OSError):  # the hub is gone, and with it the engine
            pass
        finally:
            spoke.close()

    def _answer(self, spoke: Spoke) -> None:
        """Answer commands until told to stop, or until one fails."""
        hanging = False
        while not isinstance(command := spoke.receive(), Stop):
            hanging = hanging or isinstance(command, Hang)
            if hanging:
                continue
            started_s = time.thread_time()
            try:
                effect = self._carry_out(command)  # type: ignore[arg-type]
            except Exception:  # noqa: BLE001  the hub must learn of it; the chip is lost from here on
                spoke.send(Failed(reason=traceback.format_exc()))
                return
            self._cpu_s += time.thread_time() - started_s
            spoke.send(effect)

    def _carry_out(self, command: Command) -> Effect:
        if isinstance(command, LoadExperts):
            command = read_experts(self._share, command)
        return self._chip.handle(command)

    def wait_ready(self) -> None:
        """Return once the share is loaded: Ray answers no call before the actor is made."""

    def is_serving(self) -> bool:
        """Whether the chip still takes commands."""
        return self._thread.is_alive()

    def cpu_s(self) -> float:
        """CPU seconds that the chip has computed."""
        return self._cpu_s

    def memory_bytes(self) -> tuple[int, int]:
        """Proportional and resident set size of this actor's process, in bytes."""
        lines = (line.split() for line in _SMAPS.read_text(encoding="ascii").splitlines()[1:])
        kilobytes = {fields[0]: int(fields[1]) for fields in lines}
        return kilobytes["Pss:"] * 1024, kilobytes["Rss:"] * 1024
