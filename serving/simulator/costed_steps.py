"""What a decided step costs, compiled, and its place in the log."""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from emulator.arrays import Int64s
from emulator.compiled import compiled, inlined
from emulator.ultraserver import cost_kernel, count_kernel
from emulator.ultraserver.cost_kernel import StepTables
from emulator.ultraserver.power_kernel import Drawn
from emulator.units import NS_PER_S
from serving.simulator.step_run_record import StepRoom, StepRules, StepRunRecord


@inlined
def are_known(costs: StepTables, room: StepRoom) -> bool:
    """Whether the tables know each rank's tokens, and an idle one's that computes along."""
    ranks = costs.tables[0].ranks
    kinds = ranks.kinds
    for rank in range(len(room.pending)):
        tokens = max(room.pending[rank], ranks.dummy[0])
        if not (
            count_kernel.is_known(kinds.known_tokens, tokens)
            and count_kernel.is_known(kinds.known_logits, room.logit_rows[rank])
        ):
            return False
    return count_kernel.is_known(kinds.known_tokens, 0)


@inlined
def _log(whole: Drawn, r: StepRunRecord) -> None:
    """Begin a step of that cost now."""
    joules = whole.watts * whole.duration_ns / NS_PER_S
    step = r.counts[0]
    r.steps[step].begin_ns = r.run[0].now_ns
    r.steps[step].duration_ns = whole.duration_ns
    r.steps[step].throttled_ns = whole.throttled_ns
    r.steps[step].joules = joules
    r.run[0].end_ns = r.run[0].now_ns + whole.duration_ns
    r.run[0].busy_ns += whole.duration_ns
    r.run[0].joules += joules


@compiled
def begin_step(rules: StepRules, r: StepRunRecord, totals: Int64s, rows: int) -> None:
    """Cost the decided step, and log it; `StepCostModel.cost` of it.

    `rows` of it are in `room`, and `totals` are those of requests that stand beside them.
    """
    room = rules.room
    batch = (room.rows, room.new[:rows], room.context[:rows], room.logit_rows)
    _log(cost_kernel.drawn(rules.costs, totals, batch, rules.keeps), r)
