"""Snapshots of an engine."""

from typing import Any

from msgspec.structs import replace

from serving.wire.control_call import TelemetryReply
from serving.wire.machine_state import SleepState
from serving.wire.telemetry import Telemetry


def a_telemetry(**given: Any) -> Telemetry:
    """Two chips and a spare that serve three requests."""
    telemetry = Telemetry(
        emulated_s=12.5,
        dilation=4.0,
        steps=1234,
        busy_s=11.0,
        lag_s=0.25,
        prompt_tokens=50_000,
        output_tokens=7_000,
        requests_arrived=40,
        requests_running=3,
        requests_waiting=1,
        kv_blocks_used=20,
        kv_blocks=8192,
        chips=2,
        chips_up=3,
        chips_leased=0,
        ranks=2,
        ranks_up=2,
        chip_watts=1801.0,
        facility_watts=3000.0,
        chip_joules=20_000.0,
        facility_joules=33_000.0,
        faults=0,
        expert_imbalance=1.25,
        lagging_steps=1,
        compute_wall_s=0.5,
        pause_s=0.125,
        provisioned_watts=5000.0,
        requests_moved=10,
        empty_rank_steps=12,
        expert_rebalances=14,
        expert_moved_bytes=16 * 10**9,
        kv_transfers=40,
        kv_transfers_failed=1,
        kv_transfer_bytes=3 * 10**9,
        kv_transfer_joules=2.5,
        kv_transfer_s=0.02,
        model_version=19,
        rollout_blocks_pending=21,
        handovers=20,
        handover_bytes=22 * 10**9,
        handover_joules=24.5,
        training_tokens=26 * 10**9,
        training_joules=28.5,
    )
    return replace(telemetry, **given)


def a_snapshot(**given: Any) -> TelemetryReply:
    """The same without events but those `given`."""
    look = TelemetryReply(telemetry=a_telemetry(), leases=(), versions=(), sleep=SleepState())
    events = given.get("fault_events", ())
    return replace(look, **{"fault_event_number": events[-1].number if events else 0, **given})
