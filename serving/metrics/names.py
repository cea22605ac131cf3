"""Each metric of ours, once: name, type, help, and the field of the snapshot it shows.

Names of counters carry no `_total` here; the exposition format adds it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family. `field` is the snapshot's attribute."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    field: str


METRICS = (
    Metric(
        name="ultraserve_clock_dilation",
        kind="gauge",
        help="Wall seconds per emulated second; 0 when time is virtual.",
        field="dilation",
    ),
    Metric(
        name="ultraserve_emulated_seconds",
        kind="counter",
        help="Emulated seconds since the engine's start, to the end of the last step.",
        field="emulated_s",
    ),
    Metric(
        name="ultraserve_steps",
        kind="counter",
        help="Engine steps that computed at least one token.",
        field="steps",
    ),
    Metric(
        name="ultraserve_busy_seconds",
        kind="counter",
        help="Emulated seconds spent in steps.",
        field="busy_s",
    ),
    Metric(
        name="ultraserve_lag_seconds",
        kind="counter",
        help="Emulated seconds by which steps ended late because the host could not keep up.",
        field="lag_s",
    ),
    Metric(
        name="ultraserve_lagging_steps",
        kind="counter",
        help="Steps that ended late because the host could not keep up.",
        field="lagging_steps",
    ),
    Metric(
        name="ultraserve_chip_energy_joules",
        kind="counter",
        help="Modelled energy drawn by the partition's chips, in emulated time.",
        field="chip_joules",
    ),
    Metric(
        name="ultraserve_facility_energy_joules",
        kind="counter",
        help="Modelled energy at the facility (chips, share of the racks, PUE), in emulated time.",
        field="facility_joules",
    ),
    Metric(
        name="ultraserve_chip_watts",
        kind="gauge",
        help="Modelled watts of the partition's chips in the last step.",
        field="chip_watts",
    ),
    Metric(
        name="ultraserve_facility_watts",
        kind="gauge",
        help="Modelled watts at the facility in the last step.",
        field="facility_watts",
    ),
    Metric(
        name="ultraserve_provisioned_watts",
        kind="gauge",
        help="The partition's share of the provisioned rack budget.",
        field="provisioned_watts",
    ),
    Metric(
        name="ultraserve_chips",
        kind="gauge",
        help="Chips of the partition.",
        field="chips",
    ),
    Metric(
        name="ultraserve_compute_wall_seconds",
        kind="counter",
        help="Wall seconds that the chips' computing and the step channel took on this host.",
        field="compute_wall_s",
    ),
    Metric(
        name="ultraserve_pause_seconds",
        kind="counter",
        help="Emulated seconds that recovering from faults and moving experts held steps up.",
        field="pause_s",
    ),
    Metric(
        name="ultraserve_chips_up",
        kind="gauge",
        help="Chips of the partition that are in service.",
        field="chips_up",
    ),
    Metric(
        name="ultraserve_ranks_up",
        kind="gauge",
        help="Data-parallel ranks that take requests.",
        field="ranks_up",
    ),
    Metric(
        name="ultraserve_faults",
        kind="counter",
        help="Faults since the engine's start.",
        field="faults",
    ),
    Metric(
        name="ultraserve_requests_moved",
        kind="counter",
        help="Requests that were computed again on another rank because theirs lost its KV cache.",
        field="requests_moved",
    ),
    Metric(
        name="ultraserve_empty_rank_steps",
        kind="counter",
        help="Steps that ranks took part in without a token, because another rank had some.",
        field="empty_rank_steps",
    ),
    Metric(
        name="ultraserve_expert_imbalance",
        kind="gauge",
        help="Tokens of the busiest chip over the mean chip's, averaged over layers, in the window "
        "that balancing looks at; 0 before the first token.",
        field="expert_imbalance",
    ),
    Metric(
        name="ultraserve_expert_rebalances",
        kind="counter",
        help="How often experts were given new places by their load.",
        field="expert_rebalances",
    ),
    Metric(
        name="ultraserve_expert_moved_bytes",
        kind="counter",
        help="Bytes of the timed model's expert weights that rebalancing moved between chips.",
        field="expert_moved_bytes",
    ),
    Metric(
        name="ultraserve_model_version",
        kind="gauge",
        help="Version of the weights that every block of chips serves, or is about to.",
        field="model_version",
    ),
    Metric(
        name="ultraserve_blocks_waiting",
        kind="gauge",
        help="Blocks of chips that serve another version of the weights still.",
        field="blocks_waiting",
    ),
    Metric(
        name="ultraserve_chips_lent",
        kind="gauge",
        help="Chips of the partition that are lent out to training, or on their way back.",
        field="chips_lent",
    ),
    Metric(
        name="ultraserve_handovers",
        kind="counter",
        help="Hand-overs of groups of chips that were completed, to training and back.",
        field="handovers",
    ),
    Metric(
        name="ultraserve_handover_bytes",
        kind="counter",
        help="Bytes that hand-overs moved over links and read from storage.",
        field="handover_bytes",
    ),
    Metric(
        name="ultraserve_handover_joules",
        kind="counter",
        help="Modelled energy that chips drew while they changed hands; part of all chips' energy.",
        field="handover_joules",
    ),
    Metric(
        name="ultraserve_training_tokens",
        kind="counter",
        help="Tokens that training jobs say they have trained on lent chips.",
        field="training_tokens",
    ),
    Metric(
        name="ultraserve_training_joules",
        kind="counter",
        help="Modelled energy that training drew on lent chips beyond idle ones; part of all "
        "chips' energy.",
        field="training_joules",
    ),
)

INFO_NAME = "ultraserve_info"
INFO_HELP = "What is emulated: always 1."
INFO_LABELS = (
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
)

WALL_TTFT_NAME = "ultraserve_wall_time_to_first_token_seconds"
WALL_TTFT_HELP = (
    "Time to first token in wall seconds; vllm:time_to_first_token_seconds is emulated."
)
WALL_E2E_NAME = "ultraserve_wall_e2e_request_latency_seconds"
WALL_E2E_HELP = "Request latency in wall seconds; vllm:e2e_request_latency_seconds is emulated."
