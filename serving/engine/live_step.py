"""A step of the live machine, and the silence of a chip that holds one up."""

from dataclasses import dataclass

from emulator.specs.seating import Seating
from emulator.ultraserver.lockstep import StepResult
from emulator.ultraserver.machine import StepCosting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveStep:
    """A step, what it took beside its own time, and the ranks whose requests must move.

    `costing` and `seating` are of the machine that computed it, before anything that was noticed
    after it; `repeats` counts the attempts that broke off before.
    `lost_ranks` have lost their KV, whether or not a spare has brought them back.
    """

    result: StepResult
    costing: StepCosting
    seating: Seating
    pause_ns: int
    repeats: int
    lost_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A chip that a fault has made silent is given up at `until_ns`.

    Then the machine reads weights for `reading_ns`, as far as is known. `charged`: the wait is in
    what the machine has been held up for.
    """

    chip: int
    until_ns: int
    reading_ns: int
    charged: bool = False
