"""A step of the fleet that lost chips: what is done of it, and who did not answer."""

from emulator.chip.effects import Effect
from emulator.specs.step import RankOutput
from emulator.ultraserver.lockstep import StepResult


class UnfinishedStep:
    """The ranks of a step in progress, the outputs of those that are done, and the result of an
    attempt that computed every layer, if one did.
    """

    __slots__ = ("outputs", "ranks", "whole")

    def __init__(self, ranks: set[int]) -> None:
        self.ranks = ranks
        self.whole: StepResult | None = None
        self.outputs: dict[int, RankOutput] = {}


class Interrupted(Exception):
    """Chips did not answer; `replies` are what the others had to say."""

    def __init__(self, chips: tuple[int, ...], replies: dict[int, Effect]) -> None:
        super().__init__(chips)
        self.chips = chips
        self.replies = replies
