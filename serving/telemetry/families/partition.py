"""Families of the whole partition: power, racks, tokens, steps, faults, hand-overs."""

from typing import Final

from serving.telemetry.families.family import Family

_MEAN: Final = "mean of the last emulated seconds"

ENGINE_UTILIZATION: Final = Family(
    name="ultraserve_engine_utilization_ratio",
    labels=("engine",),
    help=f"Share of the time in which an engine was busy, mean of the chips that serve, {_MEAN}.",
)
TOKENS: Final = Family(
    name="ultraserve_tokens",
    kind="counter",
    labels=("kind",),
    help="Tokens: of prompts that were computed (prompt; prefix hits are not), and sampled "
    "(output).",
)
TOKENS_PER_MEGAWATT: Final = Family(
    name="ultraserve_tokens_per_second_per_megawatt",
    unit="tokens/s/MW",
    labels=("kind", "basis"),
    help="Tokens per second and megawatt of the last 60 emulated seconds: output, input, total; "
    "by the racks' budget (provisioned), the utility's meter (drawn) or the planned utility power "
    "(all-in).",
)
PUE: Final = Family(
    name="ultraserve_pue_ratio",
    help="Facility watts per watt at the racks' input, on the worst day.",
)
IT_POWER: Final = Family(
    name="ultraserve_it_watts",
    help=f"Modelled watts at the racks' input, the partition's share, {_MEAN}.",
)
FACILITY_PART: Final = Family(
    name="ultraserve_facility_part_watts",
    labels=("part",),
    help=f"Modelled watts at the facility by part, {_MEAN}; their sum is "
    "ultraserve_facility_watts.",
)
RACK_POWER: Final = Family(
    name="ultraserve_rack_power_watts",
    labels=("rack",),
    help=f"Modelled watts at a rack's input, the partition's share of it, {_MEAN}.",
)
RACK_BUDGET: Final = Family(
    name="ultraserve_rack_budget_watts",
    labels=("rack",),
    help="The partition's share of what a rack is given.",
)
CHIP_BUDGET: Final = Family(name="ultraserve_chip_budget_watts", help="What a chip may draw.")
SWITCH_TRAYS_UP: Final = Family(
    name="ultraserve_switch_trays_up",
    labels=("rack",),
    help="Switch trays of a rack of the machine that work.",
)
SWITCH_TRAYS: Final = Family(
    name="ultraserve_switch_trays",
    labels=("rack",),
    help="Switch trays that a rack of the machine has, the partition's or not.",
)
STEP_PART: Final = Family(
    name="ultraserve_step_part_seconds",
    kind="counter",
    labels=("part",),
    help="Emulated seconds of steps by named part, on the chips that everyone waits for.",
)
STEPS_BY_PHASE: Final = Family(
    name="ultraserve_steps_by_phase",
    kind="counter",
    labels=("phase",),
    help="Steps: nearly only prompts (prefill), some of both (mixed), no prompt (decode).",
)
FAULTS_BY_KIND: Final = Family(
    name="ultraserve_faults_by_kind",
    kind="counter",
    labels=("kind",),
    help="Faults since the engine's start by what broke.",
)
FAULTS_OPEN: Final = Family(
    name="ultraserve_faults_open", help="Faults whose cause has not been healed."
)
HANDOVER_AGE: Final = Family(
    name="ultraserve_handover_age_seconds",
    labels=("lease", "phase"),
    help="Emulated seconds for which a lease drains or restores; absent for all others.",
)
TRAINING_LOSS: Final = Family(
    name="ultraserve_training_loss",
    unit="nats",
    labels=("lease",),
    help="Loss per token of a lease's training job at its last step; absent without one.",
)
RANK_RUNNING: Final = Family(
    name="ultraserve_rank_requests_running", labels=("rank",), help="Requests that a rank computes."
)
RANK_WAITING: Final = Family(
    name="ultraserve_rank_requests_waiting",
    labels=("rank",),
    help="Requests that wait in a rank's scheduler.",
)
RANK_KV: Final = Family(
    name="ultraserve_rank_kv_usage_ratio",
    labels=("rank",),
    help="KV blocks that requests hold over those that a rank has.",
)
RANK_UP: Final = Family(
    name="ultraserve_rank_up",
    labels=("rank",),
    help="1 for a rank that takes requests, 0 for one that does not.",
)
SNAPSHOT_AGE: Final = Family(
    name="ultraserve_hardware_snapshot_age_seconds",
    was="ultraserve_hardware_age_seconds",
    unit="wall s",
    help="Wall seconds since the engine was asked for what this page says of the hardware.",
)
SNAPSHOT_DURATION: Final = Family(
    name="ultraserve_hardware_snapshot_duration_seconds",
    was="ultraserve_hardware_look_seconds",
    unit="wall s",
    help="Wall seconds that the engine's answer took, waiting for its step included.",
)
PARTITION: Final = (
    *(ENGINE_UTILIZATION, TOKENS, TOKENS_PER_MEGAWATT, PUE, IT_POWER, FACILITY_PART, RACK_POWER),
    *(RACK_BUDGET, CHIP_BUDGET, SWITCH_TRAYS_UP, SWITCH_TRAYS, STEP_PART, STEPS_BY_PHASE),
    *(FAULTS_BY_KIND, FAULTS_OPEN, HANDOVER_AGE, TRAINING_LOSS, RANK_RUNNING, RANK_WAITING),
    *(RANK_KV, RANK_UP, SNAPSHOT_AGE, SNAPSHOT_DURATION),
)
