"""Day and night: owners of the chips, hand-overs, and training."""

from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.dashboards.expressions import (
    RACKS,
    emulated_rate,
    or_zero,
    over,
    picked,
    quantile,
    rate,
    total,
)
from deploy.grafana.dashboards.frame import Panels, framed
from deploy.grafana.dashboards.panels import figure, lines, phases

EACH = "{{instance}}"
LEASE = "lease {{lease}} {{instance}}"
HANDOVERS = "ultraserve_handovers_total"
TRAINED = "ultraserve_training_tokens_total"
LOSS = "ultraserve_training_loss"


def dashboard() -> models.Dashboard:
    """The dashboard, complete."""
    return framed(
        "day-night",
        "UltraServe / Day and night",
        "Who has the chips, how they change hands, and what training makes of the night. When the "
        "next hand-over is due is on the console and in `ultraserve daynight`.",
        (
            ("Now", _now()),
            ("Who has the chips", _chips()),
            ("Hand-overs", _handovers()),
            ("Training", _training()),
            ("Serving meanwhile", _serving()),
        ),
        chips="racks",
    )


def _now() -> Panels:
    age = picked("ultraserve_handover_age_seconds")
    return (
        figure(
            "Lent out",
            "Chips that are lent to training, or on their way there or back.",
            "none",
            (total(picked("ultraserve_chips_leased")), EACH),
        ),
        figure(
            "Training",
            "Chips that train now.",
            "none",
            (or_zero(total(picked("ultraserve_chip_state", 'phase="training"'))), EACH),
        ),
        figure(
            "Hand-over under way",
            "Emulated seconds since the oldest hand-over began that has "
            "not ended; 0 where there is none.",
            "s",
            (or_zero(f"max by (instance) ({age})"), EACH),
            steps=((120, "orange"), (600, "red")),
        ),
        figure(
            "Hand-overs",
            "Hand-overs that were completed, to training and back, since the start.",
            "none",
            (total(picked(HANDOVERS)), EACH),
        ),
        figure(
            "Trained tokens/s",
            "Tokens that training jobs train on per EMULATED second.",
            "si:tok/s",
            (emulated_rate(picked(TRAINED)), EACH),
        ),
        figure(
            "Trained tokens",
            "Since the engine's start.",
            "short",
            (total(picked(TRAINED)), EACH),
        ),
        figure(
            "Loss",
            "The newest that a training job has told; the lowest of several.",
            "none",
            (f"min by (instance) (last_over_time({picked(LOSS)}[$__range]))", EACH),
            decimals=3,
        ),
        figure(
            "Served version",
            "Number of the weights that every block of chips serves, or is about to.",
            "none",
            (f"max by (instance) ({picked('ultraserve_model_version')})", EACH),
        ),
    )


def _chips() -> Panels:
    state = picked("ultraserve_chip_state", RACKS)
    return (
        phases("What each chip does", "Phase of each chip; red is slow, hung or lost.", RACKS),
        lines(
            "Chips by phase",
            "How many chips serve, drain, train, come back or stand by; out: lost, or of no rank.",
            "none",
            (f"count by (instance, phase) ({state})", "{{phase}} {{instance}}"),
            stacked=True,
        ),
    )


def _handovers() -> Panels:
    def each(name: str) -> str:
        return over(rate(picked(name)), rate(picked(HANDOVERS)))

    return (
        lines(
            "Under way",
            "Emulated seconds since each group's hand-over began; a group that "
            "serves or trains is not shown.",
            "s",
            (
                f"max by (instance, lease, phase) "
                f"(last_over_time({picked('ultraserve_handover_age_seconds')}[$__rate_interval]))",
                "{{phase}} " + LEASE,
            ),
            width=8,
            steps=((120, "orange"), (600, "red")),
        ),
        lines(
            "Completed",
            "Hand-overs since the engine's start.",
            "none",
            (total(picked(HANDOVERS)), EACH),
            width=8,
        ),
        lines(
            "What they moved",
            "Bytes since the engine's start, over links and from storage.",
            "bytes",
            (total(picked("ultraserve_handover_bytes_total")), EACH),
            width=8,
        ),
        lines(
            "What they drew",
            "Joules since the engine's start that chips drew while they changed hands.",
            "joule",
            (total(picked("ultraserve_handover_joules_total")), EACH),
            width=8,
        ),
        lines(
            "Versions of the weights",
            "The newest one, and blocks that still serve another.",
            "none",
            (f"max by (instance) ({picked('ultraserve_model_version')})", "version {{instance}}"),
            (total(picked("ultraserve_rollout_blocks_pending")), "blocks that wait {{instance}}"),
            width=8,
        ),
    )


def _training() -> Panels:
    joules = picked("ultraserve_training_joules_total")
    return (
        lines(
            "Loss",
            "What each job tells of its last step.",
            "none",
            (f"max by (instance, lease) ({picked(LOSS)})", LEASE),
            width=8,
        ),
        lines(
            "Trained tokens/s",
            "Per EMULATED second.",
            "si:tok/s",
            (emulated_rate(picked(TRAINED)), EACH),
            width=8,
        ),
        lines(
            "Joules for each trained token",
            "What training draws, idle power included, over its tokens.",
            "joule",
            (over(rate(joules), rate(picked(TRAINED))), EACH),
            width=8,
        ),
        lines(
            "Trained, of what the chips would",
            "Below 1 the chips wait for this host to compute their steps.",
            "percentunit",
            (f"min by (instance, lease) ({picked('ultraserve_training_share')})", LEASE),
            width=12,
        ),
        lines(
            "Computed, of what is trained",
            "Below 1 the job is fast-forwarded: the host computes a sample of its steps.",
            "percentunit",
            (f"min by (instance, lease) ({picked('ultraserve_training_computed_share')})", LEASE),
            width=12,
        ),
    )


def _serving() -> Panels:
    ttft = "vllm:time_to_first_token_seconds"
    return (
        lines(
            "Demand",
            "Requests that run and wait in the ranks' schedulers.",
            "none",
            (total(picked("vllm:num_requests_running")), "running {{instance}}"),
            (total(picked("vllm:num_requests_waiting")), "waiting {{instance}}"),
            width=8,
        ),
        lines(
            "TTFT p99",
            "Emulated; a hand-over should not be seen here.",
            "s",
            (quantile(0.99, ttft), EACH),
            width=8,
        ),
        lines(
            "Tokens/s, served and trained",
            "Per EMULATED second.",
            "si:tok/s",
            (emulated_rate(picked("ultraserve_tokens_total")), "served {{instance}}"),
            (emulated_rate(picked(TRAINED)), "trained {{instance}}"),
            width=8,
        ),
    )
