"""Every figure that a run reports, defined once: its name, unit, formula and which way is better.

`--help`, the guide, every report and `compare` read these; nothing else says what a figure means.
"""

from dataclasses import dataclass
from typing import Final, Literal

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A figure. `name` is its key in JSON and CSV; `label` what a person reads; `formula` how it
    is computed; `unit` as printed, empty for a count or share.
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
