"""The engine's families: clock, steps, energy, faults, experts, hand-overs. Values are of the
newest snapshot, taken when a page is read.
"""

import re
from dataclasses import dataclass
from typing import Final

from serving.telemetry.families.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFamily(Family):
    """A family that shows the snapshot's attribute `field`, by default of its own name."""

    field: str = ""

    def __post_init__(self) -> None:
        Family.__post_init__(self)
        if not self.field:
            field = re.sub("_seconds$", "_s", self.name.removeprefix("ultraserve_"))
            object.__setattr__(self, "field", field)


SNAPSHOT: Final = (
    SnapshotFamily(
        name="ultraserve_clock_dilation",
        help="Wall seconds per emulated second in the present epoch; 0 when time is virtual.",
        field="dilation",
    ),
    SnapshotFamily(
        name="ultraserve_clock_epoch",
        help="Number of the clock's epoch, from 0 on; only --clock auto begins another.",
    ),
    SnapshotFamily(
        name="ultraserve_clock_epoch_start_emulated_seconds",
        help="Emulated seconds from the engine's start until the present epoch of the clock.",
        field="epoch_emulated_s",
    ),
    SnapshotFamily(
        name="ultraserve_clock_epoch_start_unix_seconds",
        unit="wall s",
        help="When the present epoch of the clock began, in Unix time.",
        field="epoch_unix_s",
    ),
    SnapshotFamily(
        name="ultraserve_emulated_seconds",
        kind="counter",
        help="Emulated seconds since the engine's start, idle time included.",
    ),
    SnapshotFamily(
        name="ultraserve_steps",
        kind="counter",
        help="Engine steps that computed at least one token.",
    ),
    SnapshotFamily(
        name="ultraserve_busy_seconds", kind="counter", help="Emulated seconds spent in steps."
    ),
    SnapshotFamily(
        name="ultraserve_lag_seconds",
        kind="counter",
        help="Emulated seconds by which steps ended late because the host could not keep up.",
    ),
    SnapshotFamily(
        name="ultraserve_lagging_steps",
        kind="counter",
        help="Steps that ended late because the host could not keep up.",
    ),
    SnapshotFamily(
        name="ultraserve_chip_energy_joules",
        kind="counter",
        help="Modelled energy drawn by the partition's chips, in emulated time.",
        field="chip_joules",
    ),
    SnapshotFamily(
        name="ultraserve_facility_energy_joules",
        kind="counter",
        help="Modelled energy at the facility (chips, share of the racks, PUE), in emulated time.",
        field="facility_joules",
    ),
    SnapshotFamily(
        name="ultraserve_chip_watts",
        help="Modelled watts of the partition's chips, spares included, mean of the last emulated "
        "seconds.",
    ),
    SnapshotFamily(
        name="ultraserve_facility_watts",
        help="Modelled watts at the facility, mean of the last emulated seconds.",
    ),
    SnapshotFamily(
        name="ultraserve_provisioned_watts",
        help="The partition's share of the provisioned rack budget.",
    ),
    SnapshotFamily(name="ultraserve_chips", help="Chips of the partition."),
    SnapshotFamily(
        name="ultraserve_compute_wall_seconds",
        kind="counter",
        unit="wall s",
        help="Wall seconds that the chips' computing and the step channel took on this host.",
    ),
    SnapshotFamily(
        name="ultraserve_pause_seconds",
        kind="counter",
        help="Emulated seconds that recovering from faults and moving experts held steps up.",
    ),
    SnapshotFamily(name="ultraserve_chips_up", help="Chips of the partition that are in service."),
    SnapshotFamily(name="ultraserve_ranks_up", help="Data-parallel ranks that take requests."),
    SnapshotFamily(
        name="ultraserve_faults", kind="counter", help="Faults since the engine's start."
    ),
    SnapshotFamily(
        name="ultraserve_stall_seconds",
        help="Emulated seconds for which nothing is computed yet: a chip is silent, or weights are "
        "read; 0 while the machine is free to compute.",
    ),
    SnapshotFamily(
        name="ultraserve_stall_wall_seconds",
        help="The wall seconds that ultraserve_stall_seconds take at the present dilation.",
    ),
    SnapshotFamily(
        name="ultraserve_requests_moved",
        kind="counter",
        help="Requests that were computed again on another rank because theirs lost its KV cache.",
    ),
    SnapshotFamily(
        name="ultraserve_empty_rank_steps",
        kind="counter",
        help="Steps that ranks took part in without a token, because another rank had some.",
    ),
    SnapshotFamily(
        name="ultraserve_expert_imbalance",
        help="Tokens of the busiest chip over the mean chip's, averaged over layers, in the window "
        "that balancing looks at; 0 before the first token.",
    ),
    SnapshotFamily(
        name="ultraserve_expert_rebalances",
        kind="counter",
        help="How often experts were given new places by their load.",
    ),
    SnapshotFamily(
        name="ultraserve_expert_moved_bytes",
        kind="counter",
        help="Bytes of the timed model's expert weights that rebalancing moved between chips.",
    ),
    SnapshotFamily(
        name="ultraserve_model_version",
        help="Version of the weights that every block of chips serves, or is about to.",
    ),
    SnapshotFamily(
        name="ultraserve_rollout_blocks_pending",
        was="ultraserve_blocks_waiting",
        help="Blocks of chips that serve another version of the weights still.",
    ),
    SnapshotFamily(
        name="ultraserve_chips_leased",
        was="ultraserve_chips_lent",
        help="Chips of the partition that are leased to training, or on their way back.",
    ),
    SnapshotFamily(
        name="ultraserve_handovers",
        kind="counter",
        help="Hand-overs of groups of chips that were completed, to training and back.",
    ),
    SnapshotFamily(
        name="ultraserve_handover_bytes",
        kind="counter",
        help="Bytes that hand-overs moved over links and read from storage.",
    ),
    SnapshotFamily(
        name="ultraserve_handover_joules",
        kind="counter",
        help="Modelled energy that chips drew while they changed hands; part of all chips' energy.",
    ),
    SnapshotFamily(
        name="ultraserve_training_tokens",
        kind="counter",
        help="Tokens that training jobs say they have trained on lent chips.",
    ),
    SnapshotFamily(
        name="ultraserve_training_joules",
        kind="counter",
        help="Modelled energy that training drew on lent chips beyond idle ones; part of all "
        "chips' energy.",
    ),
)

INFO: Final = Family(
    name="ultraserve_info",
    help="What is emulated: always 1.",
    labels=(
        "system",
        "ultraserver",
        "chips",
        "tp",
        "dp",
        "ep",
        "lnc",
        "time_model",
        "weights",
        "routing",
        "clock",
    ),
)
WALL_TTFT: Final = Family(
    name="ultraserve_wall_time_to_first_token_seconds",
    kind="histogram",
    unit="wall s",
    help="Time to first token in wall seconds; vllm:time_to_first_token_seconds is emulated.",
)
WALL_E2E: Final = Family(
    name="ultraserve_wall_e2e_request_latency_seconds",
    kind="histogram",
    unit="wall s",
    help="Request latency in wall seconds; vllm:e2e_request_latency_seconds is emulated.",
)
ENGINE: Final = (*SNAPSHOT, INFO, WALL_TTFT, WALL_E2E)
