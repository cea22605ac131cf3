"""The engine's way to be given a step by a scheduler that has nothing to compute.

The scheduler decides what is computed and when; the engine below it answers. Where the engine has
something to tell the scheduler, or goes on by itself (weights are read, a group comes back), it
wishes for a step: an idle scheduler then makes one without tokens, whose report brings the news.
Both live in one process; the object travels with every `LockstepOutput`.
"""


class StepWish:
    """Whether the engine wants to be stepped although no request has anything to compute."""

    __slots__ = ("wanted",)

    def __init__(self) -> None:
        self.wanted = False

    def make(self) -> None:
        """Ask for a step: the engine's side."""
        self.wanted = True

    def grant(self) -> None:
        """Note that a step is made: the scheduler's side."""
        self.wanted = False
