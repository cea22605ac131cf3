"""Serving: latency as clients see it, its parts, gateway and ranks."""

from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.dashboards.expressions import (
    STEPS,
    counts_by_size,
    emulated_rate,
    mean,
    over,
    picked,
    quantile,
    quantiles,
    rate,
    total,
)
from deploy.grafana.dashboards.frame import Panels, framed
from deploy.grafana.dashboards.panels import figure, heat, lines

TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
EACH = "{{instance}}"
CLASSED = "{{class}} {{instance}}"


def dashboard() -> models.Dashboard:
    """The dashboard, complete."""
    return framed(
        "serving",
        "UltraServe / Serving",
        "What clients see, where their time goes, and what gateway, ranks and steps do.",
        (
            ("Now", _now()),
            ("Latency", _latency()),
            ("Goodput", _goodput()),
            ("Throughput", _throughput()),
            ("Requests", _requests()),
            ("Gateway", _gateway()),
            ("Replicas", _replicas()),
            ("Ranks and their KV cache", _ranks()),
            ("Steps", _steps()),
        ),
    )


def _now() -> Panels:
    hits = over(
        rate(picked("vllm:prefix_cache_hits_total")),
        rate(picked("vllm:prefix_cache_queries_total")),
    )
    return (
        figure(
            "Running",
            "Requests that the schedulers of all ranks have running.",
            "none",
            (total(picked("vllm:num_requests_running")), EACH),
        ),
        figure(
            "Waiting",
            "Requests that wait in the ranks' schedulers; those that wait at the gateway "
            "are further down.",
            "none",
            (total(picked("vllm:num_requests_waiting")), EACH),
        ),
        figure(
            "Output tokens/s",
            "Output tokens per EMULATED second.",
            "si:tok/s",
            (emulated_rate(picked("vllm:generation_tokens_total")), EACH),
        ),
        figure(
            "Requests/s",
            "Requests that ended, per EMULATED second.",
            "si:req/s",
            (emulated_rate(picked("vllm:request_success_total")), EACH),
        ),
        figure(
            "TTFT p99",
            "Time to the first token, emulated; the limit of goodput is half a second.",
            "s",
            (quantile(0.99, TTFT), EACH),
            steps=((0.4, "orange"), (0.5, "red")),
        ),
        figure(
            "ITL p99",
            "Time from one token to the next, emulated.",
            "s",
            (quantile(0.99, ITL), EACH),
            steps=((0.04, "orange"), (0.05, "red")),
        ),
        figure(
            "KV cache in use",
            "Of the fullest rank; near 1 requests are preempted.",
            "percentunit",
            (f"max by (instance) ({picked('ultraserve_rank_kv_usage_ratio')})", EACH),
            steps=((0.85, "orange"), (0.95, "red")),
        ),
        figure(
            "Prefix cache hits",
            "The share of prompt tokens asked for that a prefix cache had.",
            "percentunit",
            (hits, EACH),
        ),
    )


def _latency() -> Panels:
    return (
        lines(
            "TTFT",
            "Time to the first token, emulated.",
            "s",
            *quantiles(TTFT),
            (mean(TTFT), "mean {{instance}}"),
        ),
        lines(
            "ITL",
            "Time from one output token to the next, emulated.",
            "s",
            *quantiles(ITL),
            (mean(ITL), "mean {{instance}}"),
        ),
        lines(
            "TPOT",
            "Time per output token after the first, a mean for each request, emulated.",
            "s",
            *quantiles(TPOT),
            (mean(TPOT), "mean {{instance}}"),
        ),
        lines(
            "End to end",
            "From a request's arrival to its last token, emulated.",
            "s",
            *quantiles(E2E),
            (mean(E2E), "mean {{instance}}"),
        ),
        heat(
            "TTFT, all requests",
            "How many requests had to wait how long, emulated.",
            "s",
            counts_by_size(TTFT),
        ),
        heat(
            "ITL, all tokens",
            "How many tokens came after how long, emulated.",
            "s",
            counts_by_size(ITL),
        ),
        lines(
            "Where a request's time goes",
            "Mean emulated seconds of a request that has ended: in the queue, in prefill, in "
            "decode.",
            "s",
            (mean("vllm:request_queue_time_seconds"), "queue {{instance}}"),
            (mean("vllm:request_prefill_time_seconds"), "prefill {{instance}}"),
            (mean("vllm:request_decode_time_seconds"), "decode {{instance}}"),
            stacked=True,
        ),
        lines(
            "What a client waits (wall)",
            "Means in seconds of the WALL: what a client of this emulated machine really waits, "
            "the emulated time times the dilation.",
            "s",
            (mean("ultraserve_wall_time_to_first_token_seconds"), "first token {{instance}}"),
            (mean("ultraserve_wall_e2e_request_latency_seconds"), "whole request {{instance}}"),
        ),
    )


def _goodput() -> Panels:
    missed = "ultraserve:slo_missed:ratio_rate5m"
    return (
        lines(
            "Requests that missed a limit",
            "Share of the requests of the last five minutes (WALL) that took longer than the "
            "recording rules allow (500 ms to the first token, 50 ms for each one after it), or "
            "failed (answered).",
            "percentunit",
            (f"max by (instance, slo) ({picked(missed)})", "{{slo}} {{instance}}"),
            width=8,
            steps=((0.01, "orange"), (0.1, "red")),
        ),
        lines(
            "Goodput",
            "Share of requests that kept both limits and did not fail; histograms count each limit "
            "alone, so it lies between two bounds.",
            "percentunit",
            (
                f"max by (instance, bound) ({picked('ultraserve:goodput:ratio_rate1m')})",
                "{{bound}} {{instance}}",
            ),
            width=8,
            most=1,
        ),
        lines(
            "Good requests/s",
            "Requests that kept both limits and did not fail, per EMULATED second.",
            "si:req/s",
            (
                f"max by (instance, bound) "
                f"({picked('ultraserve:goodput_requests_per_second:rate1m')})",
                "{{bound}} {{instance}}",
            ),
            width=8,
        ),
    )


def _throughput() -> Panels:
    per_step = over(rate(picked("ultraserve_tokens_total"), "kind"), STEPS)
    return (
        lines(
            "Tokens/s",
            "Per EMULATED second: prompt tokens, those from a prefix cache among "
            "them, and output tokens.",
            "si:tok/s",
            (emulated_rate(picked("vllm:prompt_tokens_total")), "prompt {{instance}}"),
            (
                emulated_rate(picked("vllm:prompt_tokens_cached_total")),
                "of them cached {{instance}}",
            ),
            (emulated_rate(picked("vllm:generation_tokens_total")), "output {{instance}}"),
        ),
        lines(
            "Tokens of a step",
            "Mean tokens that a step computes, over all ranks.",
            "none",
            (per_step, "{{kind}} {{instance}}"),
        ),
        lines(
            "Running and waiting",
            "Requests in the schedulers of all ranks.",
            "none",
            (total(picked("vllm:num_requests_running")), "running {{instance}}"),
            (total(picked("vllm:num_requests_waiting")), "waiting {{instance}}"),
        ),
        lines(
            "Preemptions/s",
            "Requests per EMULATED second that lost their KV blocks to others "
            "and are computed again.",
            "none",
            (emulated_rate(picked("vllm:num_preemptions_total")), EACH),
        ),
    )


def _requests() -> Panels:
    return (
        lines(
            "How requests end",
            "Requests per EMULATED second by vLLM's reason: stop, length, abort, error.",
            "si:req/s",
            (
                emulated_rate(picked("vllm:request_success_total"), "finished_reason"),
                "{{finished_reason}} {{instance}}",
            ),
            width=8,
        ),
        heat(
            "Prompt lengths",
            "Tokens of the prompts of requests that ended.",
            "none",
            counts_by_size("vllm:request_prompt_tokens"),
            width=8,
        ),
        heat(
            "Output lengths",
            "Output tokens of requests that ended.",
            "none",
            counts_by_size("vllm:request_generation_tokens"),
            width=8,
        ),
    )


def _gateway() -> Panels:
    return (
        lines(
            "What became of requests",
            "Requests per EMULATED second that came to the gateway, by what became of them.",
            "si:req/s",
            (
                emulated_rate(picked("ultraserve_admission_requests_total"), "class", "outcome"),
                "{{outcome}} {{class}} {{instance}}",
            ),
        ),
        lines(
            "Refused",
            "Requests that were refused since the server's start, by reason.",
            "none",
            (
                total(picked("ultraserve_admission_refused_total"), "class", "reason"),
                "{{reason}} {{class}} {{instance}}",
            ),
        ),
        lines(
            "At the gateway",
            "Requests inside, and those that wait for their turn or their first token.",
            "none",
            (total(picked("ultraserve_admission_in_flight"), "class"), f"inside, {CLASSED}"),
            (total(picked("ultraserve_admission_waiting_requests"), "class"), f"wait, {CLASSED}"),
            width=8,
        ),
        lines(
            "Prompt tokens that wait",
            "Prompt tokens of the requests that wait.",
            "none",
            (total(picked("ultraserve_admission_waiting_tokens"), "class"), CLASSED),
            width=8,
        ),
        lines(
            "From the gateway to the first token",
            "Mean emulated seconds.",
            "s",
            (
                over(
                    rate(picked("ultraserve_admission_wait_seconds_sum"), "class"),
                    rate(picked("ultraserve_admission_wait_seconds_count")),
                ),
                CLASSED,
            ),
            width=8,
        ),
    )


def _replicas() -> Panels:
    role = total(picked("ultraserve_replica_role"), "role")
    changes = total(picked("ultraserve_replica_role_changes_total"), "replica")
    again = total(picked("ultraserve_replays_total"), "reason")
    return (
        lines(
            "Replicas, by role",
            "Replicas of a service (serve --replica-roles) that prefill, decode, or do "
            "both; none without roles.",
            "none",
            (role, "{{role}} {{instance}}"),
            width=8,
        ),
        lines(
            "Changes of roles",
            "Changes of each replica's role since the service's start, by an operator or the load.",
            "none",
            (changes, "replica {{replica}}, {{instance}}"),
            width=8,
        ),
        lines(
            "Sent anew",
            "Attempts at requests, or at their prompts, after which the service looked for a "
            "replica again, maybe the same one, since its start: the replica was lost or "
            "unavailable, it refused (429), or prompts were shared with one that came to prefill.",
            "none",
            (again, "{{reason}} {{instance}}"),
            width=8,
        ),
    )


def _ranks() -> Panels:
    rank = "rank {{rank}}, {{instance}}"
    return (
        lines(
            "Running, by rank",
            "Requests that each data-parallel rank has running.",
            "none",
            (total(picked("ultraserve_rank_requests_running"), "rank"), rank),
            width=8,
        ),
        lines(
            "Waiting, by rank",
            "Requests that wait in each rank's scheduler.",
            "none",
            (total(picked("ultraserve_rank_requests_waiting"), "rank"), rank),
            width=8,
        ),
        lines(
            "KV cache, by rank",
            "The share of each rank's KV blocks that is in use.",
            "percentunit",
            (total(picked("ultraserve_rank_kv_usage_ratio"), "rank"), rank),
            width=8,
            most=1,
            steps=((0.85, "orange"), (0.95, "red")),
        ),
    )


def _steps() -> Panels:
    part = over(rate(picked("ultraserve_step_part_seconds_total"), "part"), STEPS)
    return (
        lines(
            "A step's time by part",
            "Mean emulated seconds of a step, by what the slowest chips do then.",
            "s",
            (part, "{{part}} {{instance}}"),
            stacked=True,
        ),
        lines(
            "Engines of the chips",
            "The share of the last emulated seconds in which each engine "
            "was busy, mean of the chips that are up.",
            "percentunit",
            (
                f"max by (instance, engine) ({picked('ultraserve_engine_utilization_ratio')})",
                "{{engine}} {{instance}}",
            ),
            most=1,
        ),
        lines(
            "Steps/s by phase",
            "Steps per EMULATED second: prefill, decode, or both in one.",
            "none",
            (
                emulated_rate(picked("ultraserve_steps_by_phase_total"), "phase"),
                "{{phase}} {{instance}}",
            ),
            stacked=True,
        ),
        lines(
            "Busy",
            "The share of emulated time that is spent in steps.",
            "percentunit",
            (emulated_rate(picked("ultraserve_busy_seconds_total")), EACH),
        ),
    )
