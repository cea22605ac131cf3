"""A small engine with snapshots made by hand, for commands that poll."""

from typing import Any

from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot
from serving.wire.control_call import (
    ControlReply,
    DescribeReply,
    DescribeRequest,
    SnapshotReply,
    SnapshotRequest,
    StateReply,
    StateRequest,
    request_from_json,
)
from tests.serving.server.control.small_engine import SmallEngine
from tests.serving.telemetry.neuron_tools.looks import a_snapshot


class LookedAtEngine(SmallEngine):
    """Each snapshot is half an emulated second and 50 steps later; `given` are of `a_snapshot`."""

    def __init__(self, count: int = 4, **given: Any) -> None:
        super().__init__()
        self.given = given
        self._count = count
        self.shown = 0

    def look(self) -> EngineSnapshot:
        on = {"emulated_s": 100.0 + 0.5 * self.shown, "steps": 1000 + 50 * self.shown}
        return a_snapshot(self._count, **(on | self.given))

    def _reply(self, line: str) -> ControlReply:
        request = request_from_json(line)
        if isinstance(request, SnapshotRequest):
            self.shown += 1
            return SnapshotReply(snapshot=self.look().snapshot)
        if isinstance(request, DescribeRequest):
            return DescribeReply(description=self.look().description)
        if isinstance(request, StateRequest):
            return StateReply(state=self.look().snapshot.state)
        return super()._reply(line)
