"""Every figure of a run, defined once: name, unit, formula, direction.

`--help`, the guide, every report and `compare` read these.
"""

from dataclasses import dataclass
from textwrap import fill
from typing import Final, Literal

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A figure. `name` is its key in JSON and CSV; `label` its human name; `formula` how it is
    computed; `unit` as printed, empty for a count or share.
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
    Definition(name="ttft_ms", label="TTFT", unit="ms", formula="t_1 - t_due", better="lower"),
    Definition(
        name="ttft_from_send_ms",
        label="TTFT, from send",
        unit="ms",
        formula="t_1 - t_sent",
        better="lower",
    ),
    Definition(
        name="tpot_ms",
        label="TPOT",
        unit="ms",
        formula="(E2E - TTFT) / (n - 1) = (t_n - t_1) / (n - 1), for replies of several chunks",
        better="lower",
    ),
    Definition(
        name="itl_ms",
        label="ITL",
        unit="ms",
        formula="each gap between two chunks of a request; where c chunks carried n > c tokens, "
        "x (c - 1) / (n - 1): a chunk's tokens share the gap evenly",
        better="lower",
    ),
    Definition(name="e2e_ms", label="E2E", unit="ms", formula="t_n - t_due", better="lower"),
    Definition(
        name="e2e_from_send_ms",
        label="E2E, from send",
        unit="ms",
        formula="t_n - t_sent",
        better="lower",
    ),
    Definition(name="ntpot_ms", label="NTPOT", unit="ms", formula="E2E / n", better="lower"),
    Definition(
        name="interactivity",
        label="interactivity",
        unit="tokens/s/user",
        formula="1 / TPOT, for replies of several chunks",
        better="higher",
    ),
    Definition(
        name="interactivity_e2e",
        label="interactivity, E2E",
        unit="tokens/s/user",
        formula="n / E2E",
        better="higher",
    ),
    Definition(
        name="queueing_ms",
        label="queueing at the client",
        unit="ms",
        formula="t_sent - t_due: what latencies from the send do not show",
        better="lower",
    ),
)
"""Figures with a value per request (ITL: per gap), shown as percentiles."""

RATES: Final = (
    Definition(
        name="requests_per_s",
        label="requests/s",
        unit="1/s",
        formula="replies completed / window",
        better="higher",
    ),
    Definition(
        name="input_tokens_per_s",
        label="input tokens/s",
        unit="1/s",
        formula="prompt tokens of completed requests / window",
        better="higher",
    ),
    Definition(
        name="output_tokens_per_s",
        label="output tokens/s",
        unit="1/s",
        formula="output tokens of completed requests / window",
        better="higher",
    ),
    Definition(
        name="total_tokens_per_s",
        label="total tokens/s",
        unit="1/s",
        formula="(input + output tokens of completed requests) / window",
        better="higher",
    ),
    Definition(
        name="goodput_per_s",
        label="goodput",
        unit="requests/s",
        formula="completed requests that kept every limit of --slo / window",
        better="higher",
    ),
    Definition(
        name="goodput_tokens_per_s",
        label="goodput, output tokens",
        unit="1/s",
        formula="output tokens of requests that kept every limit of --slo / window",
        better="higher",
    ),
    Definition(
        name="attainment",
        label="SLO attainment",
        unit="",
        formula="requests that kept every limit of --slo / (completed + failed)",
        better="higher",
    ),
    Definition(
        name="in_flight",
        label="requests in flight",
        unit="",
        formula="sum of (t_ended - t_sent), as far as it lies within the window, / window",
    ),
    Definition(
        name="failed_share",
        label="requests failed",
        unit="",
        formula="failed / (completed + failed)",
        better="lower",
    ),
)
"""Figures with one value per run. The window goes from the first send to the last token; with a
skipped part, from its end. What arrives within it counts, whenever its request was due: output
tokens when their chunk came, a prompt's tokens with the first chunk, a request with its last one.
"""

ENERGY: Final = (
    Definition(
        name="average_watts",
        label="average power, facility",
        unit="W",
        formula="facility joules / metered seconds, between two readings of the server's meters",
        better="lower",
    ),
    Definition(
        name="chip_average_watts",
        label="average power, chips",
        unit="W",
        formula="chips' joules / metered seconds",
        better="lower",
    ),
    Definition(
        name="provisioned_watts",
        label="power provisioned",
        unit="W",
        formula="what the facility sets aside for these chips, as the server says",
        better="lower",
    ),
    Definition(
        name="joules_per_output_token",
        label="energy per output token",
        unit="J",
        formula="average facility watts x window / output tokens within it",
        better="lower",
    ),
    Definition(
        name="output_tokens_per_s_per_mw",
        label="output tokens/s per MW",
        unit="tokens/s/MW",
        formula="output tokens/s / (average facility watts / 1,000,000)",
        better="higher",
    ),
    Definition(
        name="output_tokens_per_s_per_provisioned_mw",
        label="per MW provisioned",
        unit="tokens/s/MW",
        formula="output tokens/s / (provisioned watts / 1,000,000)",
        better="higher",
    ),
    Definition(
        name="tokens_per_s_per_chip",
        label="tokens/s per chip",
        unit="tokens/s/chip",
        formula="output tokens/s / chips",
        better="higher",
    ),
    Definition(
        name="server_queue_ms",
        label="queueing at the server",
        unit="ms",
        formula="growth of vLLM's request_queue_time_seconds: its sum / its count",
        better="lower",
    ),
    Definition(
        name="prefix_hit_share",
        label="prefix cache hits",
        unit="",
        formula="growth of vLLM's prefix_cache_hits / growth of prefix_cache_queries, in tokens",
        better="higher",
    ),
)
"""Figures from the server's own meters, read just before and just after the window."""

SLO: Final = """\
--slo ttft=200ms,tpot=20ms@p99: each measure's percentile (failed requests are infinitely late) is
at most its limit; @pN holds for the terms before it that have none, p99 otherwise. A request keeps
the SLO if each of its own values is within its limit; of its ITLs, that share of them."""

INTERVALS: Final = """\
percentiles are exact: every sample is kept. In brackets: 95 % confidence intervals, which allow for
samples that depend on their neighbours in time, in a load that is steady over the window."""


def help_text() -> str:
    """Every formula, as `--help` prints them: lines of up to 100 columns."""
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
