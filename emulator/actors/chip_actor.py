"""One Ray actor that holds one chip: it waits for a command, lets the chip decide, answers.

Ray owns the actor's life; step data does not pass through Ray. The loop runs in a thread so that
the actor can still be asked how it is.
"""

import os
import threading
import time
import traceback
from pathlib import Path

import psutil

from emulator.actors.channel import Spoke
from emulator.chip.chip import Chip
from emulator.chip.commands import Stop
from emulator.chip.effects import Failed, Ready
from emulator.compute.architecture import read_architecture
from emulator.compute.checkpoint import load_shard
from emulator.compute.paged_kv import PagedKv


class ChipActor:
    """Chip number `chip` with the given global `experts` of the checkpoint in `weights_dir`."""

    def __init__(
        self,
        *,
        chip: int,
        address: str,
        key: bytes,
        weights_dir: str,
        experts: list[int],
        kv_blocks: int,
        block_tokens: int,
    ) -> None:
        directory = Path(weights_dir)
        arch = read_architecture(directory)
        kv = PagedKv(
            layers=arch.layers,
            kv_heads=arch.kv_heads,
            head_dim=arch.head_dim,
            blocks=kv_blocks,
            block_tokens=block_tokens,
        )
        self._number = chip
        self._cpu_s = 0.0
        self._chip = Chip(load_shard(directory, arch, experts), kv)
        self._thread = threading.Thread(
            target=self._serve, args=(address, key), name=f"chip-{chip}", daemon=True
        )
        self._thread.start()

    def _serve(self, address: str, key: bytes) -> None:
        spoke = Spoke(address, key, self._number)
        spoke.send(Ready(chip=self._number))
        while True:
            try:
                command = spoke.receive()
            except (EOFError, ConnectionError):  # the hub is gone, and with it the engine
                break
            if isinstance(command, Stop):
                break
            started_s = time.thread_time()
            try:
                effect = self._chip.handle(command)  # type: ignore[arg-type]
            except Exception:  # noqa: BLE001  the hub must learn of it; the chip is lost from here on
                spoke.send(Failed(reason=traceback.format_exc()))
                break
            self._cpu_s += time.thread_time() - started_s
            spoke.send(effect)
        spoke.close()

    def is_serving(self) -> bool:
        """Whether the chip still takes commands."""
        return self._thread.is_alive()

    def cpu_s(self) -> float:
        """CPU seconds that the chip has computed."""
        return self._cpu_s

    def memory_bytes(self) -> tuple[int, int]:
        """Proportional and resident set size of this actor's process, in bytes."""
        info = psutil.Process(os.getpid()).memory_full_info()
        return int(info.pss), int(info.rss)
