"""Snapshots for tests: every field given, with changes by name."""

from dataclasses import replace
from typing import Any

from serving.wire.snapshot import Snapshot

_FIRST = Snapshot(
    dilation=4.0,
    emulated_s=5.0,
    steps=3,
    busy_s=1.0,
    lag_s=0.25,
    lagging_steps=1,
    chip_joules=1000.0,
    facility_joules=1500.0,
    chips=4,
    chip_watts=900.0,
    facility_watts=1400.0,
    provisioned_watts=5000.0,
    compute_wall_s=0.5,
    pause_s=0.125,
    chips_up=8,
    ranks_up=2,
    faults=6,
    requests_moved=10,
    empty_rank_steps=12,
    expert_imbalance=1.75,
    expert_rebalances=14,
    expert_moved_bytes=16 * 10**9,
    model_version=19,
    rollout_blocks_pending=21,
    chips_leased=18,
    handovers=20,
    handover_bytes=22 * 10**9,
    handover_joules=24.5,
    training_tokens=26 * 10**9,
    training_joules=28.5,
)


def snapshot(**changes: Any) -> Snapshot:
    """Make a snapshot in which every number is another one."""
    return replace(_FIRST, **changes)
