"""A step of the live machine, and the silence of a chip that holds one up."""

from dataclasses import dataclass

from emulator.specs.seating import Seating
from emulator.ultraserver.lockstep import StepResult
from emulator.ultraserver.machine import StepCosting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveStep:
    """A step, the time it took beside its own, and the ranks whose requests must move.

    `costing` and `seating` are of the machine that computed it; `repeats` counts broken-off
    attempts. `lost_ranks` lost their KV, even if a spare has replaced them.
    """

    result: StepResult
    costing: StepCosting
    seating: Seating
    pause_ns: int
    repeats: int
    lost_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A silent chip, given up at `until_ns`; the machine then reads weights for about `reading_ns`.

    `charged`: the wait is in the machine's stall.
    """

    chip: int
    until_ns: int
    reading_ns: int
    charged: bool = False
