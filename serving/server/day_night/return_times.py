"""How long a group takes from being called back to serving: its job saves, its chips read weights.

Emulated time, as the controller saw it pass: what the host takes to stop a process counts too.
"""

from collections.abc import Sequence

from serving.policy.day_night.handover import Phase
from serving.server.day_night.handover_plan import Group


class ReturnTimes:
    """Kept by the server's process; `last_s` is None until a group has come back from training."""

    def __init__(self) -> None:
        self.last_s: float | None = None
        self._called: dict[int, float] = {}  # by group, since when

    def look(self, groups: Sequence[Group], desired: Sequence[Phase], emulated_s: float) -> None:
        """Note who was called back, and who has come."""
        for group, wish in zip(groups, desired, strict=True):
            if wish is not Phase.SERVING:
                self._called.pop(group.number, None)
            elif group.phase is Phase.TRAINING:
                self._called.setdefault(group.number, emulated_s)
            elif group.phase is Phase.SERVING and group.number in self._called:
                self.last_s = emulated_s - self._called.pop(group.number)
