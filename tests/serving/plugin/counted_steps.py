"""The inputs of an engine's ledger, kept for independent sums."""

from emulator.ultraserver.step_cost import StepCost
from serving.engine.ledger import Int64s
from serving.engine.live_engine import LiveEngine


class CountedSteps:
    """Follows the steps of `engine` from now on; `last_cost` is the newest one's."""

    def __init__(self, engine: LiveEngine) -> None:
        self.last_cost: StepCost | None = None
        self.end_ns = engine._time.start_ns
        ledger = engine._meters.ledger
        add = ledger.add_step

        def added(cost: StepCost, seats: Int64s, *, begin_ns: int, end_ns: int) -> None:
            assert begin_ns >= self.end_ns, "no time is in two steps"
            assert end_ns - begin_ns >= cost.duration_ns
            self.last_cost, self.end_ns = cost, end_ns
            add(cost, seats, begin_ns=begin_ns, end_ns=end_ns)

        ledger.add_step = added  # type: ignore[method-assign]
