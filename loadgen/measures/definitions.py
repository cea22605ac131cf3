"""Every figure of a run, defined once: name, unit, formula, direction.

`--help`, the guide, every report and `compare` read these.
"""

from dataclasses import dataclass
from textwrap import fill
from typing import Final, Literal

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A figure. `name` is its key in JSON and CSV, `label` its human name; `unit` as printed, empty
    for a count or share.
    """

    name: str
    label: str
    unit: str
    formula: str
    better: Better = "neither"


TIMES: Final = """\
t_due: when a request was due; t_sent: when it was really sent; t_1, t_n: arrival of its first and
last chunk; n: its output tokens. Times are the server's emulated time (wall time / dilation), or
wall time where a server keeps no clock of its own; a report says which."""

DISTRIBUTIONS: Final = (
    Definition("ttft_ms", "TTFT", "ms", "t_1 - t_due", "lower"),
    Definition("ttft_from_send_ms", "TTFT, from send", "ms", "t_1 - t_sent", "lower"),
    Definition(
        "tpot_ms",
        "TPOT",
        "ms",
        "(E2E - TTFT) / (n - 1) = (t_n - t_1) / (n - 1), for replies of several chunks",
        "lower",
    ),
    Definition(
        "itl_ms",
        "ITL",
        "ms",
        "each gap between two chunks of a request; where c chunks carried n > c tokens, "
        "x (c - 1) / (n - 1): a chunk's tokens share the gap evenly",
        "lower",
    ),
    Definition("e2e_ms", "E2E", "ms", "t_n - t_due", "lower"),
    Definition("e2e_from_send_ms", "E2E, from send", "ms", "t_n - t_sent", "lower"),
    Definition("ntpot_ms", "NTPOT", "ms", "E2E / n", "lower"),
    Definition(
        "interactivity",
        "interactivity",
        "tokens/s/user",
        "1 / TPOT, for replies of several chunks",
        "higher",
    ),
    Definition("interactivity_e2e", "interactivity, E2E", "tokens/s/user", "n / E2E", "higher"),
    Definition(
        "queueing_ms",
        "queueing at the client",
        "ms",
        "t_sent - t_due: what latencies from the send do not show",
        "lower",
    ),
)
"""Figures with a value per request (ITL: per gap), shown as percentiles."""

RATES: Final = (
    Definition("requests_per_s", "requests/s", "1/s", "replies completed / window", "higher"),
    Definition(
        "input_tokens_per_s",
        "input tokens/s",
        "1/s",
        "prompt tokens of completed requests / window",
        "higher",
    ),
    Definition(
        "output_tokens_per_s",
        "output tokens/s",
        "1/s",
        "output tokens of completed requests / window",
        "higher",
    ),
    Definition(
        "total_tokens_per_s",
        "total tokens/s",
        "1/s",
        "(input + output tokens of completed requests) / window",
        "higher",
    ),
    Definition(
        "goodput_per_s",
        "goodput",
        "requests/s",
        "completed requests that kept every limit of --slo / window",
        "higher",
    ),
    Definition(
        "goodput_tokens_per_s",
        "goodput, output tokens",
        "1/s",
        "output tokens of requests that kept every limit of --slo / window",
        "higher",
    ),
    Definition(
        "attainment",
        "SLO attainment",
        "",
        "requests that kept every limit of --slo / (completed + failed)",
        "higher",
    ),
    Definition(
        "in_flight",
        "requests in flight",
        "",
        "sum of (t_ended - t_sent), as far as it lies within the window, / window",
    ),
    Definition("failed_share", "requests failed", "", "failed / (completed + failed)", "lower"),
)
"""Figures with one value per run. The window goes from the first send (with a skipped part, from
its end) to the last token. Amounts count when they arrive, whenever their request was due: output
tokens with their chunk, a prompt's with the first chunk, a request with its last.
"""

ENERGY: Final = (
    Definition(
        "average_watts",
        "average power, facility",
        "W",
        "facility joules / metered seconds, between two readings of the server's meters",
        "lower",
    ),
    Definition(
        "chip_average_watts",
        "average power, chips",
        "W",
        "chips' joules / metered seconds",
        "lower",
    ),
    Definition(
        "provisioned_watts",
        "power provisioned",
        "W",
        "what the facility sets aside for these chips, as the server says",
        "lower",
    ),
    Definition(
        "joules_per_output_token",
        "energy per output token",
        "J",
        "average facility watts x window / output tokens within it",
        "lower",
    ),
    Definition(
        "output_tokens_per_s_per_mw",
        "output tokens/s per MW",
        "tokens/s/MW",
        "output tokens/s / (average facility watts / 1,000,000)",
        "higher",
    ),
    Definition(
        "output_tokens_per_s_per_provisioned_mw",
        "per MW provisioned",
        "tokens/s/MW",
        "output tokens/s / (provisioned watts / 1,000,000)",
        "higher",
    ),
    Definition(
        "tokens_per_s_per_chip",
        "tokens/s per chip",
        "tokens/s/chip",
        "output tokens/s / chips",
        "higher",
    ),
    Definition(
        "server_queue_ms",
        "queueing at the server",
        "ms",
        "growth of vLLM's request_queue_time_seconds: its sum / its count",
        "lower",
    ),
    Definition(
        "prefix_hit_share",
        "prefix cache hits",
        "",
        "growth of vLLM's prefix_cache_hits / growth of prefix_cache_queries, in tokens",
        "higher",
    ),
)
"""Figures from the server's meters, read just before and just after the window."""

SLO: Final = """\
--slo ttft=200ms,tpot=20ms@p99: each measure's percentile (failed requests are infinitely late) is
at most its limit; @pN holds for the terms before it that have none, p99 otherwise. A request keeps
the SLO if each of its own values is within its limit; of its ITLs, that share of them."""

INTERVALS: Final = """\
percentiles are exact: every sample is kept. In brackets: 95 % confidence intervals, which allow for
samples that depend on their neighbours in time, in a load that is steady over the window."""


def help_text() -> str:
    """Every formula as `--help` prints it: lines of up to 100 columns."""
    parts = [TIMES]
    for title, definitions in (
        ("of each request", DISTRIBUTIONS),
        ("of the run", RATES),
        ("of the server", ENERGY),
    ):
        parts.append("\n".join([f"{title}:", *(_lines(each) for each in definitions)]))
    return "\n\n".join([*parts, SLO, INTERVALS])


def _lines(definition: Definition) -> str:
    unit = f" [{definition.unit}]" if definition.unit else ""
    head = f"  {definition.label}{unit}"
    return fill(
        f"{head:<44}  {definition.formula}",
        width=100,
        subsequent_indent=" " * 46,
        break_on_hyphens=False,
    )
