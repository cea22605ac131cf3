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
        "ultraserve_clock_dilation",
        "Wall seconds per emulated second in the present epoch; 0 when time is virtual.",
        field="dilation",
    ),
    SnapshotFamily(
        "ultraserve_clock_epoch",
        "Number of the clock's epoch, from 0 on; only --clock auto begins another.",
    ),
    SnapshotFamily(
        "ultraserve_clock_epoch_start_emulated_seconds",
        "Emulated seconds from the engine's start until the present epoch of the clock.",
        field="epoch_emulated_s",
    ),
    SnapshotFamily(
        "ultraserve_clock_epoch_start_unix_seconds",
        "When the present epoch of the clock began, in Unix time.",
        unit="wall s",
        field="epoch_unix_s",
    ),
    SnapshotFamily(
        "ultraserve_emulated_seconds",
        "Emulated seconds since the engine's start, idle time included.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_steps", "Engine steps that computed at least one token.", kind="counter"
    ),
    SnapshotFamily("ultraserve_busy_seconds", "Emulated seconds spent in steps.", kind="counter"),
    SnapshotFamily(
        "ultraserve_lag_seconds",
        "Emulated seconds by which steps ended late because the host could not keep up.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_lagging_steps",
        "Steps that ended late because the host could not keep up.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_chip_energy_joules",
        "Modelled energy drawn by the partition's chips, in emulated time.",
        kind="counter",
        field="chip_joules",
    ),
    SnapshotFamily(
        "ultraserve_facility_energy_joules",
        "Modelled energy at the facility (chips, share of the racks, PUE), in emulated time.",
        kind="counter",
        field="facility_joules",
    ),
    SnapshotFamily(
        "ultraserve_chip_watts",
        "Modelled watts of the partition's chips, spares included, mean of the last emulated "
        "seconds.",
    ),
    SnapshotFamily(
        "ultraserve_facility_watts",
        "Modelled watts at the facility, mean of the last emulated seconds.",
    ),
    SnapshotFamily(
        "ultraserve_provisioned_watts", "The partition's share of the provisioned rack budget."
    ),
    SnapshotFamily("ultraserve_chips", "Chips of the partition."),
    SnapshotFamily(
        "ultraserve_compute_wall_seconds",
        "Wall seconds that the chips' computing and the step channel took on this host.",
        kind="counter",
        unit="wall s",
    ),
    SnapshotFamily(
        "ultraserve_pause_seconds",
        "Emulated seconds that recovering from faults and moving experts held steps up.",
        kind="counter",
    ),
    SnapshotFamily("ultraserve_chips_up", "Chips of the partition that are in service."),
    SnapshotFamily("ultraserve_ranks_up", "Data-parallel ranks that take requests."),
    SnapshotFamily("ultraserve_faults", "Faults since the engine's start.", kind="counter"),
    SnapshotFamily(
        "ultraserve_stall_seconds",
        "Emulated seconds for which nothing is computed yet: a chip is silent, or weights are "
        "read; 0 while the machine is free to compute.",
    ),
    SnapshotFamily(
        "ultraserve_stall_wall_seconds",
        "The wall seconds that ultraserve_stall_seconds take at the present dilation.",
    ),
    SnapshotFamily(
        "ultraserve_requests_moved",
        "Requests that were computed again on another rank because theirs lost its KV cache.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_empty_rank_steps",
        "Steps that ranks took part in without a token, because another rank had some.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_expert_imbalance",
        "Tokens of the busiest chip over the mean chip's, averaged over layers, in the window "
        "that balancing looks at; 0 before the first token.",
    ),
    SnapshotFamily(
        "ultraserve_expert_rebalances",
        "How often experts were given new places by their load.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_expert_moved_bytes",
        "Bytes of the timed model's expert weights that rebalancing moved between chips.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_kv_transfers",
        "Transfers of a request's KV to the rank that decodes it, or between engines, at both.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_kv_transfers_failed",
        "Transfers of KV that were lost with a chip or engine; the request is computed again.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_kv_transfer_bytes",
        "Bytes of KV that moved between ranks, or engines.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_kv_transfer_joules",
        "Joules that moving these bytes took, above idle chips.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_kv_transfer_seconds",
        "Emulated seconds of all transfers of KV, each by itself, side by side or not.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_model_version",
        "Version of the weights that every block of chips serves, or is about to.",
    ),
    SnapshotFamily(
        "ultraserve_rollout_blocks_pending",
        "Blocks of chips that serve another version of the weights still.",
        was="ultraserve_blocks_waiting",
    ),
    SnapshotFamily(
        "ultraserve_chips_leased",
        "Chips of the partition that are leased to training, or on their way back.",
        was="ultraserve_chips_lent",
    ),
    SnapshotFamily(
        "ultraserve_handovers",
        "Hand-overs of groups of chips that were completed, to training and back.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_handover_bytes",
        "Bytes that hand-overs moved over links and read from storage.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_handover_joules",
        "Modelled energy that chips drew while they changed hands; part of all chips' energy.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_training_tokens",
        "Tokens that training jobs say their leased chips have trained.",
        kind="counter",
    ),
    SnapshotFamily(
        "ultraserve_training_joules",
        "Modelled energy that leased chips drew while their jobs trained, idle power included; "
        "part of all chips' energy.",
        kind="counter",
    ),
)

INFO: Final = Family(
    "ultraserve_info",
    "What is emulated: always 1.",
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
    "ultraserve_wall_time_to_first_token_seconds",
    "Time to first token in wall seconds; vllm:time_to_first_token_seconds is emulated.",
    kind="histogram",
    unit="wall s",
)
WALL_E2E: Final = Family(
    "ultraserve_wall_e2e_request_latency_seconds",
    "Request latency in wall seconds; vllm:e2e_request_latency_seconds is emulated.",
    kind="histogram",
    unit="wall s",
)
ENGINE: Final = (*SNAPSHOT, INFO, WALL_TTFT, WALL_E2E)
