"""What a run reports: its figures, how they were got, and every reason to doubt them.

The JSON form is here; `loadgen.report_table` prints the same for a person. Nothing here measures.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from loadgen.attack import AttackSummary
from loadgen.measure import Measures
from loadgen.server_clock import ServerWindow
from loadgen.workload import LengthCuts

METERED_TOLERANCE = 0.05  # the meters' window may differ by this share from the measured one


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """What was sent, in words and numbers."""

    url: str
    model: str
    trace: str
    arrivals: str
    prompts: str
    seed: int
    requests: int
    repeated_heads: int
    warmup_requests: int
    warmup_problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything there is to say of a run.

    `command` repeats it; `example_errors` has one message for each kind of error.
    """

    command: str
    measures: Measures
    server: ServerWindow
    workload: WorkloadSummary
    cuts: LengthCuts
    attack: AttackSummary
    example_errors: Mapping[str, str]

    @property
    def time_word(self) -> str:
        """The time that durations are in: `emulated` or `wall`."""
        return "emulated" if self.server.emulated else "wall"

    def info(self, label: str) -> str | None:
        """A label of what the server emulates, None if it does not say."""
        return self.server.start.info.get(label)

    def notes(self) -> tuple[str, ...]:
        """Sentences on whatever makes a figure mean less than it seems to."""
        return (*_sending_notes(self), *_counting_notes(self), *_server_notes(self))


def _sending_notes(report: Report) -> Iterator[str]:
    attack, workload = report.attack, report.workload
    if attack.interrupted:
        aborted = report.measures.aborted_requests
        yield (
            f"interrupted: {aborted} requests were aborted and {attack.unsent} not sent; "
            "tokens of aborted requests are not counted, the energy they took is"
        )
    if attack.held_back:
        yield (
            f"{attack.held_back} requests were due while --max-in-flight was reached, and sent "
            "late; their latencies count from when they were due"
        )
    if workload.repeated_heads:
        yield (
            f"{workload.repeated_heads} prompts begin like another one: "
            "the server's prefix cache may have helped"
        )
    if workload.warmup_problem:
        yield f"the warm-up failed: {workload.warmup_problem}"


def _counting_notes(report: Report) -> Iterator[str]:
    measures = report.measures
    if measures.uncounted_replies:
        yield (
            f"{measures.uncounted_replies} replies came without usage: "
            "each of their chunks is counted as one token"
        )
    if measures.short_replies:
        yield (
            f"{measures.short_replies} replies have another length than asked for; "
            "the server may not know ignore_eos"
        )
    if measures.resized_prompts:
        yield (
            f"{measures.resized_prompts} prompts have another length by the server's count; "
            "the server's is reported"
        )
    if measures.chunks and measures.chunks != measures.output_tokens:
        yield (
            f"{measures.output_tokens:,} tokens came in {measures.chunks:,} chunks; "
            "a chunk's tokens share its gap evenly in ITL"
        )


def _server_notes(report: Report) -> Iterator[str]:
    measures, server = report.measures, report.server
    if server.start.problem:
        yield (
            f"the server has no /metrics to read ({server.start.problem}): "
            "times are wall times, energy and chips are unknown"
        )
    elif server.end.problem:
        yield f"the server's /metrics could not be read at the end: {server.end.problem}"
    if server.dilation_changed:
        yield (
            f"the server's dilation went from {server.start.dilation:g} to "
            f"{server.end.dilation:g} during the run: no emulated figure here is right"
        )
    if measures.lag_s:
        yield (
            f"the emulation's host was late by {measures.lag_s:.3f} emulated s in all: "
            "latencies are too long by a part of that; a higher dilation cures it"
        )
    if measures.metered_s is not None and measures.window_s is not None:
        apart_s = abs(measures.metered_s - measures.window_s)
        if apart_s > METERED_TOLERANCE * measures.window_s:
            yield (
                f"energy was metered over {measures.metered_s:.3f} s, and tokens counted over "
                f"{measures.window_s:.3f} s: watts and joules are of a somewhat other time"
            )


def to_json(report: Report) -> str:
    """Return the report as JSON text; what is not known is null, and no number is NaN."""
    measures, server = report.measures, report.server
    emulated = server.emulated
    fields: dict[str, object] = {
        "requests": measures.requests,
        "completed_requests": measures.completed_requests,
        "failed_requests": measures.failed_requests,
        "aborted_requests": measures.aborted_requests,
        "input_tokens": measures.input_tokens,
        "output_tokens": measures.output_tokens,
        "output_tokens_per_s": measures.output_tokens_per_s,
        "total_tokens_per_s": measures.total_tokens_per_s,
        "requests_per_s": measures.requests_per_s,
        "tokens_per_s_per_chip": measures.tokens_per_s_per_chip,
        "ttft_ms": asdict(measures.ttft_ms),
        "ttft_from_send_ms": asdict(measures.ttft_from_send_ms),
        "tpot_ms": asdict(measures.tpot_ms),
        "itl_ms": asdict(measures.itl_ms),
        "e2e_ms": asdict(measures.e2e_ms),
        "send_delay_ms": asdict(measures.send_delay_ms),
        "average_watts": measures.average_watts,
        "chip_average_watts": measures.chip_average_watts,
        "provisioned_watts": server.provisioned_watts,
        "joules_per_output_token": measures.joules_per_output_token,
        "output_tokens_per_s_per_mw": {
            "facility": measures.output_tokens_per_s_per_facility_mw,
            "provisioned": measures.output_tokens_per_s_per_provisioned_mw,
        },
        "time": report.time_word,
        "dilation": server.dilation,
        "wall_s": measures.wall_s,
        "emulated_s": measures.window_s if emulated else None,
        "metered_s": measures.metered_s,
        "lag_s": measures.lag_s,
        "chips": server.chips,
        **{
            label: report.info(label)
            for label in ("system", "time_model", "weights", "routing", "clock")
        },
        "errors": dict(measures.errors),
        "cuts": asdict(report.cuts),
        "workload": asdict(report.workload),
        "attack": asdict(report.attack),
        "notes": report.notes(),
        "command": report.command,
    }
    return json.dumps(fields, indent=2, allow_nan=False) + "\n"
