"""Families of the whole partition: power, racks, tokens, steps, faults, hand-overs."""

from typing import Final

from serving.telemetry.families.family import Family

_MEAN: Final = "mean of the last emulated seconds"

ENGINE_UTILIZATION: Final = Family(
    "ultraserve_engine_utilization_ratio",
    f"Share of the time in which an engine was busy, mean of the chips that serve, {_MEAN}.",
    labels=("engine",),
)
TOKENS: Final = Family(
    "ultraserve_tokens",
    "Tokens: of prompts that were computed (prompt; prefix hits are not), and sampled (output).",
    kind="counter",
    labels=("kind",),
)
TOKENS_PER_MEGAWATT: Final = Family(
    "ultraserve_tokens_per_second_per_megawatt",
    "Tokens per second and megawatt of the last 60 emulated seconds: output, input, total; "
    "by the racks' budget (provisioned), the utility's meter (drawn) or the planned utility power "
    "(all-in).",
    unit="tokens/s/MW",
    labels=("kind", "basis"),
)
PUE: Final = Family(
    "ultraserve_pue_ratio", "Facility watts per watt at the racks' input, on the worst day."
)
IT_POWER: Final = Family(
    "ultraserve_it_watts", f"Modelled watts at the racks' input, the partition's share, {_MEAN}."
)
FACILITY_PART: Final = Family(
    "ultraserve_facility_part_watts",
    f"Modelled watts at the facility by part, {_MEAN}; their sum is ultraserve_facility_watts.",
    labels=("part",),
)
RACK_POWER: Final = Family(
    "ultraserve_rack_power_watts",
    f"Modelled watts at a rack's input, the partition's share of it, {_MEAN}.",
    labels=("rack",),
)
RACK_BUDGET: Final = Family(
    "ultraserve_rack_budget_watts",
    "The partition's share of what a rack is given.",
    labels=("rack",),
)
CHIP_BUDGET: Final = Family("ultraserve_chip_budget_watts", "What a chip may draw.")
SWITCH_TRAYS_UP: Final = Family(
    "ultraserve_switch_trays_up",
    "Switch trays of a rack of the machine that work.",
    labels=("rack",),
)
SWITCH_TRAYS: Final = Family(
    "ultraserve_switch_trays",
    "Switch trays that a rack of the machine has, the partition's or not.",
    labels=("rack",),
)
STEP_PART: Final = Family(
    "ultraserve_step_part_seconds",
    "Emulated seconds of steps by named part, on the chips that everyone waits for.",
    kind="counter",
    labels=("part",),
)
STEPS_BY_PHASE: Final = Family(
    "ultraserve_steps_by_phase",
    "Steps: nearly only prompts (prefill), some of both (mixed), no prompt (decode).",
    kind="counter",
    labels=("phase",),
)
FAULTS_BY_KIND: Final = Family(
    "ultraserve_faults_by_kind",
    "Faults since the engine's start by what broke.",
    kind="counter",
    labels=("kind",),
)
FAULTS_OPEN: Final = Family("ultraserve_faults_open", "Faults whose cause has not been healed.")
HANDOVER_AGE: Final = Family(
    "ultraserve_handover_age_seconds",
    "Emulated seconds for which a lease drains or restores; absent for all others.",
    labels=("lease", "phase"),
)
TRAINING_LOSS: Final = Family(
    "ultraserve_training_loss",
    "Loss per token of a lease's training job at its last step; absent without one.",
    unit="nats",
    labels=("lease",),
)
TRAINING_LAG: Final = Family(
    "ultraserve_training_lag_seconds",
    "Emulated seconds for which the chips of a lease have waited for this host to compute their "
    "job's steps; 0 where it is fast-forwarded.",
    labels=("lease",),
)
TRAINING_SHARE: Final = Family(
    "ultraserve_training_share",
    "What the chips of a lease have trained, of what they would have without lag: 0 to 1.",
    labels=("lease",),
)
TRAINING_COMPUTED: Final = Family(
    "ultraserve_training_computed_share",
    "What this host has computed of the tokens that a lease's chips have trained: 1, or a sample "
    "where its job is fast-forwarded.",
    labels=("lease",),
)
RANK_RUNNING: Final = Family(
    "ultraserve_rank_requests_running", "Requests that a rank computes.", labels=("rank",)
)
RANK_WAITING: Final = Family(
    "ultraserve_rank_requests_waiting",
    "Requests that wait in a rank's scheduler.",
    labels=("rank",),
)
RANK_KV: Final = Family(
    "ultraserve_rank_kv_usage_ratio",
    "KV blocks that requests hold over those that a rank has.",
    labels=("rank",),
)
RANK_UP: Final = Family(
    "ultraserve_rank_up",
    "1 for a rank that takes requests, 0 for one that does not.",
    labels=("rank",),
)
SNAPSHOT_AGE: Final = Family(
    "ultraserve_hardware_snapshot_age_seconds",
    "Wall seconds since the engine was asked for what this page says of the hardware.",
    was="ultraserve_hardware_age_seconds",
    unit="wall s",
)
SNAPSHOT_DURATION: Final = Family(
    "ultraserve_hardware_snapshot_duration_seconds",
    "Wall seconds that the engine's answer took, waiting for its step included.",
    was="ultraserve_hardware_look_seconds",
    unit="wall s",
)
PARTITION: Final = (
    *(ENGINE_UTILIZATION, TOKENS, TOKENS_PER_MEGAWATT, PUE, IT_POWER, FACILITY_PART, RACK_POWER),
    *(RACK_BUDGET, CHIP_BUDGET, SWITCH_TRAYS_UP, SWITCH_TRAYS, STEP_PART, STEPS_BY_PHASE),
    *(FAULTS_BY_KIND, FAULTS_OPEN, HANDOVER_AGE, TRAINING_LOSS, TRAINING_LAG, TRAINING_SHARE),
    *(TRAINING_COMPUTED, RANK_RUNNING, RANK_WAITING),
    *(RANK_KV, RANK_UP, SNAPSHOT_AGE, SNAPSHOT_DURATION),
)
