"""How often the hand-over of each group has failed in a row, and what was said the last time.

A group that gets where it is wanted, or is wanted elsewhere, begins anew.
"""

from collections.abc import Mapping, Sequence

from serving.policy.day_night.handover import Failures, Phase
from serving.server.day_night.handover_plan import Group

_LEAVING = (Phase.SERVING, Phase.DRAINING)


class HandoverTries:
    """Kept by the server's process, which lives as long as its engine."""

    def __init__(self) -> None:
        self._failures: dict[int, Failures] = {}
        self._words: dict[int, str] = {}
        self._before: dict[int, tuple[Phase, Phase]] = {}  # phase and wish, when last looked at

    @property
    def failures(self) -> Mapping[int, Failures]:
        """By group; one that has none is absent."""
        return self._failures

    def words(self, group: int) -> str:
        """What the last failure said; empty without one."""
        return self._words.get(group, "")

    def failed(self, group: int, words: str, now_s: float) -> None:
        """Count a hand-over that was refused, or came to nothing."""
        count = self._failures.get(group, Failures()).count + 1
        self._failures[group] = Failures(count=count, last_s=now_s)
        self._words[group] = words

    def look(self, groups: Sequence[Group], desired: Sequence[Phase], now_s: float) -> None:
        """Compare with the last look: what began and is back where it was has failed."""
        for group, wish in zip(groups, desired, strict=True):
            number, phase = group.number, group.phase
            before, wish_before = self._before.get(number, (phase, wish))
            self._before[number] = (phase, wish)
            if wish is not wish_before or phase is wish:
                self._failures.pop(number, None)
                self._words.pop(number, None)
            elif before is Phase.DRAINING and phase is Phase.SERVING:
                self.failed(number, "the drain was given up", now_s)
            elif before is Phase.RESTORING and phase is Phase.TRAINING:
                words = "" if group.lease is None else group.lease.reason
                self.failed(number, words, now_s)
