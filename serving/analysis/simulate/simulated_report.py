"""Figures of a simulated run, and their report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.power.efficiency import WATTS_PER_MEGAWATT
from loadgen.measures.slo import Slo
from reporting.document import Column, Document, Facts, Lines, table_of
from reporting.numbers import number
from serving.analysis.steady_state.model_error import (
    error_in_words,
    error_of,
    model_error,
    plain_error,
)
from serving.simulator import HandoverOutcome, Run, SimulatedDeployment, known_percentile
from serving.traffic.serving_run import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShares:
    """A class's requests, and the shares that keep its target in TTFT, TPOT, and both."""

    name: str
    requests: int
    completed_requests: int
    slo: str | None
    kept: tuple[float, float, float] | None


def class_shares(
    run: Run, of_class: Int64s, targets: Mapping[str, Slo | None]
) -> tuple[ClassShares, ...]:
    """Of each class; `of_class` numbers those of `targets`, [requests].

    The shares of a run that was stopped are not known.
    """
    stopped = run.served.ending is Ending.STOPPED
    found = []
    for place, (name, slo) in enumerate(targets.items()):
        of_it = of_class == place
        kept = None
        if slo is not None and of_it.any() and not stopped:
            kept = replace(run, judged=of_it).shares(slo)
        found.append(
            ClassShares(
                name=name,
                requests=int(of_it.sum()),
                completed_requests=int(run.served.finished[of_it].sum()),
                slo=None if slo is None else slo.words,
                kept=kept,
            )
        )
    return tuple(found)


PERCENTILES: Final = (50, 90, 99)
_MS: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPercentiles:
    """Of requests that have them, in milliseconds; None without one."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReport:
    """A run's figures; rates, shares and watts are of its window.

    Attributes:
        emulated_s: end of the last step; `wall_s` is what the simulation took here, `compile_s`
            what compiling before it took, or reading what an earlier run had compiled.
        hit_tokens: of prompts, found in the prefix cache.
        ttft_ms, tpot_ms, e2e_ms: of completed requests, TPOT of those with more than one token.
        joules: of the chips; tokens/s/MW divide by the utility's meter, cooling included.
        failed_requests: given up by their clients, or left without a rank; `unsent_requests` wait
            for others that failed, or had not ended.
        model_error: by metric, measured over predicted of machines that no fit had seen: the least
            and the most of four of five; nothing of a roofline.
        kept: share of the requests that keep the target in TTFT, TPOT, and both; None for a run
            that was stopped, whose other requests are not known.
    """

    requests: int
    completed_requests: int
    failed_requests: int
    unsent_requests: int
    output_tokens: int
    prompt_tokens: int
    steps: int
    preemptions: int
    hit_tokens: int
    emulated_s: float
    wall_s: float
    compile_s: float
    ttft_ms: LatencyPercentiles
    tpot_ms: LatencyPercentiles
    e2e_ms: LatencyPercentiles
    output_tokens_per_s: float
    busy_share: float
    joules: float
    chip_watts: float
    facility_watts: float
    output_tokens_per_s_per_mw: float
    model_error: dict[str, tuple[float, float]]
    slo: str | None = None
    kept: tuple[float, float, float] | None = None
    classes: tuple[ClassShares, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverReport(SimulatedReport):
    """A run's figures, and those of its policy of day and night."""

    handovers: HandoverOutcome


def simulated_report(
    run: Run, deployment: SimulatedDeployment, *, slo: Slo | None, compile_s: float, wall_s: float
) -> SimulatedReport:
    """The figures of `run`."""
    served, traffic = run.served, run.served.traffic
    done = served.finished
    length_s = run.end_s - run.begin_s
    tokens_per_s = served.tokens / length_s if length_s else 0.0
    facility_watts = deployment.facility_watts(run.chip_watts)
    several = done & (traffic.output_tokens > 1)
    report = SimulatedReport(
        requests=len(traffic),
        completed_requests=int(done.sum()),
        failed_requests=int((served.failed & ~np.isnan(served.arrival_s)).sum()),
        unsent_requests=int(np.isnan(served.arrival_s).sum()),
        output_tokens=served.tokens,
        prompt_tokens=int(traffic.prompt_tokens[done].sum()),
        steps=served.steps,
        preemptions=served.preemptions,
        hit_tokens=served.hit_tokens,
        emulated_s=served.emulated_s,
        wall_s=wall_s,
        compile_s=compile_s,
        ttft_ms=_percentiles(served.ttft_s[done]),
        tpot_ms=_percentiles(served.tpot_s[several]),
        e2e_ms=_percentiles(served.e2e_s[done]),
        output_tokens_per_s=tokens_per_s,
        busy_share=run.busy_share,
        joules=served.joules,
        chip_watts=run.chip_watts,
        facility_watts=facility_watts,
        output_tokens_per_s_per_mw=tokens_per_s / facility_watts * WATTS_PER_MEGAWATT,
        model_error=plain_error(model_error(deployment.cost_model.calibration.name)),
        slo=None if slo is None else slo.words,
        kept=None if slo is None or served.ending is Ending.STOPPED else run.shares(slo),
    )
    if run.handovers is None:
        return report
    figures = {each.name: getattr(report, each.name) for each in fields(report)}
    return HandoverReport(**figures, handovers=run.handovers)


def _percentiles(times_s: Float64s) -> LatencyPercentiles:
    found = (known_percentile(times_s, q) for q in PERCENTILES)
    return LatencyPercentiles(
        **{
            f"p{q}": None if time_s is None else time_s * _MS
            for q, time_s in zip(PERCENTILES, found, strict=True)
        }
    )


def steps_words(report: SimulatedReport) -> str:
    """`1,020 steps, busy 99%, 0 preemptions`."""
    return (
        f"{report.steps:,} steps, busy {report.busy_share:.0%}, {report.preemptions:,} preemptions"
    )


def simulated_document(report: SimulatedReport) -> Document:
    """The report to be read."""
    rows: Sequence[tuple[str, LatencyPercentiles]] = (
        ("TTFT", report.ttft_ms),
        ("TPOT", report.tpot_ms),
        ("E2E", report.e2e_ms),
    )
    facts = [
        ("requests", f"{report.completed_requests:,} of {report.requests:,} completed"),
        ("tokens", f"{report.prompt_tokens:,} in ({report.hit_tokens:,} of them cached), "
         f"{report.output_tokens:,} out"),
        ("throughput", f"{number(report.output_tokens_per_s)} output tokens/s"),
        ("emulated", f"{number(report.emulated_s)} s, {steps_words(report)}"),
        ("power", f"{number(report.chip_watts)} W at the chips, "
         f"{number(report.facility_watts)} W at the meter; {number(report.joules)} J"),
        ("efficiency", f"{number(report.output_tokens_per_s_per_mw)} output tokens/s/MW"),
        ("simulated in", f"{number(report.wall_s)} s, and {number(report.compile_s)} s to compile"),
    ]  # fmt: skip
    if report.slo is not None and report.kept is not None:
        ttft, tpot, both = report.kept
        facts.append((report.slo, f"{both:.2%} keep it (TTFT {ttft:.2%}, TPOT {tpot:.2%})"))
    if isinstance(report, HandoverReport):
        facts += _handover_facts(report.handovers)
    for each in report.classes:
        words = f"{each.completed_requests:,} of {each.requests:,} completed"
        if each.slo is not None and each.kept is not None:
            words += f"; {each.kept[2]:.2%} keep {each.slo}"
        facts.append((each.name, words))
    latencies = table_of(
        (
            Column("latency", lambda row: row[0], align="left"),
            Column("p50", lambda row: row[1].p50, unit="ms"),
            Column("p90", lambda row: row[1].p90, unit="ms"),
            Column("p99", lambda row: row[1].p99, unit="ms"),
        ),
        rows,
    )
    return Document(
        title="Simulated run",
        subtitle="modelled, not measured",
        sections=(
            Facts(title="", rows=tuple(facts)),
            latencies,
            Lines(rows=(error_in_words(error_of(report.model_error)),)),
        ),
    )


def _handover_facts(of: HandoverOutcome) -> list[tuple[str, str]]:
    undone = f", {of.undone_tokens:,} more undone" if of.undone_tokens else ""
    refused = f", {of.refused:,} refused" if of.refused else ""
    return [
        (
            "day and night",
            f"{of.policy}: {of.handovers:,} hand-overs{refused}, {number(of.leased_chip_s)} s of "
            f"chips out, {of.moved_requests:,} requests moved",
        ),
        (
            "training",
            f"{of.trained_tokens:,} tokens in {of.trained_steps:,} steps{undone}, "
            f"{of.job_starts:,} starts",
        ),
        (
            "energy",
            f"{number(of.inference_joules)} J of inference, {number(of.training_joules)} J of "
            f"training, {number(of.handover_joules)} J of hand-overs",
        ),
    ]
