"""The engine's totals at one moment: small, frozen, plain."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine at the end of a step. Seconds and joules are emulated unless named wall.

    Totals count from the engine's start, idle time included in `emulated_s` and in the joules.
    `pause_s` is time in which recovering from faults or moving experts held steps up; it is not in
    `busy_s`. `training_joules` are what training jobs drew on lent chips beyond idle ones.

    `dilation` is that of the clock's epoch `clock_epoch`, counted from 0, which began at
    `epoch_emulated_s`, by the wall at `epoch_unix_s`; all 0 where time is virtual.

    `stall_s` is how long nothing is computed yet, because a chip is silent or weights are read;
    `stall_wall_s` is the wall time that it takes. `expert_imbalance` is the busiest chip's tokens
    over the mean's, 0 before the first.
    """

    dilation: float
    emulated_s: float
    steps: int
    busy_s: float
    lag_s: float
    lagging_steps: int
    chip_joules: float
    facility_joules: float
    chips: int
    chip_watts: float
    facility_watts: float
    provisioned_watts: float
    compute_wall_s: float
    pause_s: float
    chips_up: int
    ranks_up: int
    faults: int
    requests_moved: int
    empty_rank_steps: int
    expert_imbalance: float
    expert_rebalances: int
    expert_moved_bytes: int
    model_version: int
    rollout_blocks_pending: int
    chips_leased: int
    handovers: int
    handover_bytes: int
    handover_joules: float
    training_tokens: int
    training_joules: float
    clock_epoch: int = 0
    epoch_emulated_s: float = 0.0
    epoch_unix_s: float = 0.0
    stall_s: float = 0.0
    stall_wall_s: float = 0.0
