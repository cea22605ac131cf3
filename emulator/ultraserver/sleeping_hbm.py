"""HBM that a sleeping engine gives up, and the emulated time of sleeping and waking.

As in vLLM, level 1 moves weights to the hosts' memory and drops the KV cache, level 2 drops both;
waking restores "weights" and "kv_cache", separately on request; other HBM (activations, collective
buffers, microcode) stays. After level 2 vLLM's user loads weights; here waking reads the
checkpoint.
"""

from collections.abc import Collection, Iterable

import numpy as np

from emulator.arrays import Int64s
from emulator.errors import ConfigError
from emulator.memory.hbm_layout import release
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.ultraserver.handover_cost import HandoverCost
from emulator.ultraserver.machine import Machine

_USES = {"weights": HbmUse.WEIGHTS, "kv_cache": HbmUse.KV}
SLEEP_TAGS = tuple(_USES)

_Held = tuple[int, HbmOwner, int, int]
"""(position, owner, core, bytes)."""


class SleepingHbm:
    """HBM of a machine whose engine may sleep.

    Invariant: released bytes come back whole; every byte has one owner or is free. Leased chips
    keep their content.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._away: dict[str, list[_Held]] = {}
        self.level = 0
        self.host_bytes = 0

    @property
    def asleep(self) -> tuple[str, ...]:
        """The tags that are not in HBM."""
        return tuple(tag for tag in SLEEP_TAGS if tag in self._away)

    def fall_asleep(self, level: int) -> HandoverCost:
        """Give up weights and KV; raises ConfigError for a level other than 1 and 2."""
        if level not in (1, 2):
            raise ConfigError("level", level, "1 or 2")
        cost = HandoverCost()
        if "weights" not in self._away:
            held = self._release("weights")
            self.level, self.host_bytes = level, 0
            if level == 1:
                cost = self._machine.stowing(self._by_position(held))
                self.host_bytes = cost.bytes_storage
        self.discard_kv()
        return cost

    def discard_kv(self) -> None:
        """Give up the KV cache alone, which takes no time."""
        if "kv_cache" not in self._away:
            self._release("kv_cache")

    def wake(self, tags: Collection[str]) -> HandoverCost:
        """Restore those of `tags` that are away; raises ConfigError for another tag."""
        for tag in tags:
            if tag not in _USES:
                expected = f"of {', '.join(SLEEP_TAGS)}"
                raise ConfigError("tags", tag, expected)
        cost = HandoverCost()
        for tag in [tag for tag in self.asleep if tag in tags]:
            held = self._away.pop(tag)
            for position, owner, core, held_bytes in held:
                allocator = self._machine.hbm.allocators[position]
                allocator.allocate(owner, core=core, wanted_bytes=held_bytes)
            if tag == "weights":
                cost = self._weights_back(held)
        return cost

    def _weights_back(self, held: Iterable[_Held]) -> HandoverCost:
        if self.level == 2:
            return self._machine.renewal(range(self._machine.partition.chips))
        self.host_bytes = 0
        return self._machine.stowing(self._by_position(held))

    def _by_position(self, held: Iterable[_Held]) -> Int64s:
        by_position = np.zeros(self._machine.partition.chips, dtype=np.int64)
        for position, _, _, held_bytes in held:
            by_position[position] += held_bytes
        return by_position

    def _release(self, tag: str) -> list[_Held]:
        lent = set(self._machine.lent_positions)
        self._away[tag] = [
            (position, *held)
            for position, allocator in enumerate(self._machine.hbm.allocators)
            if position not in lent
            for held in release(allocator, (_USES[tag],))
        ]
        return self._away[tag]
