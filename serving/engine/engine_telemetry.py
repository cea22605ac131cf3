"""One look at a running engine, for whoever watches it."""

from serving.engine.scheduler_state import SchedulerState
from serving.engine.token_meter import TokenTotals
from serving.wire.machine_state import StallState
from serving.wire.snapshot import Snapshot
from serving.wire.telemetry import Telemetry


def telemetry_look(
    snapshot: Snapshot,
    tokens: TokenTotals,
    heard: SchedulerState,
    *,
    ranks: int,
    kv_blocks: int,
    expert_imbalance: float | None,
    stall: StallState | None = None,
) -> Telemetry:
    """What the engine's time, its meter and its schedulers say; `kv_blocks` are each rank's."""
    queues = heard.rank_states
    return Telemetry(
        emulated_s=snapshot.emulated_s,
        dilation=snapshot.dilation,
        steps=snapshot.steps,
        busy_s=snapshot.busy_s,
        lag_s=snapshot.lag_s,
        prompt_tokens=tokens.prompt_tokens,
        output_tokens=tokens.output_tokens,
        requests_arrived=heard.arrived_requests,
        requests_running=sum(queue.running for queue in queues),
        requests_waiting=sum(queue.waiting for queue in queues),
        kv_blocks_used=sum(queue.kv_blocks_used for queue in queues),
        kv_blocks=kv_blocks * ranks,
        chips=snapshot.chips,
        chips_up=snapshot.chips_up,
        chips_lent=snapshot.chips_leased,
        ranks=ranks,
        ranks_up=snapshot.ranks_up,
        chip_watts=snapshot.chip_watts,
        facility_watts=snapshot.facility_watts,
        chip_joules=snapshot.chip_joules,
        facility_joules=snapshot.facility_joules,
        faults=snapshot.faults,
        expert_imbalance=expert_imbalance,
        stall=stall,
    )
