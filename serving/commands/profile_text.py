"""A profile's sums as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from reporting.document import Column, table_of
from reporting.numbers import percent
from reporting.plain_text import table_lines
from serving.analysis.steady_state.model_error import error_in_words, error_of

if TYPE_CHECKING:
    from serving.analysis.profile.profile_summary import (
        EngineUse,
        PartShare,
        PhaseSummary,
        ProfileSummary,
    )

_PARTS_SHOWN: Final = 6
_WHAT_IFS_SHOWN: Final = 3
_LEAST_SHARE: Final = 0.0005  # less is 0.0 %

_ENGINE_OF: Final = {"memory": "dma", "links": "collectives"}
"""Resources with an engine of another name."""


def summary_lines(summary: ProfileSummary) -> Iterator[str]:
    """The whole summary."""
    ceilings = summary.ceilings
    yield (
        f"{summary.model} on {summary.chips} chips of {summary.system}, {summary.source} run: "
        f"{summary.steps:,} steps"
    )
    idle_s = summary.window_s - summary.step_s - summary.pause_s
    yield (
        f"{summary.window_s:.3f} emulated s: "
        f"{percent(summary.step_s / summary.window_s)} in steps, "
        f"{percent(summary.pause_s / summary.window_s)} held up, "
        f"{percent(max(0.0, idle_s) / summary.window_s)} idle"
    )
    per_s = (summary.prefill_tokens / summary.window_s, summary.decode_tokens / summary.window_s)
    yield f"{per_s[0]:,.0f} prompt tokens/s, {per_s[1]:,.0f} decoded tokens/s"
    intensity = summary.flops_per_hbm_byte
    yield (
        f"in steps: MFU {percent(summary.mfu)} of {ceilings.flops_per_s / 1e12:,.0f} TFLOP/s "
        f"{ceilings.flops_format} a chip, MBU {percent(summary.mbu)} of "
        f"{ceilings.hbm_bytes_per_s / 1e12:,.2f} TB/s"
        + (f", {intensity:,.1f} FLOP per HBM byte" if intensity is not None else "")
    )
    if summary.chip_joules_per_token is not None:
        yield (
            f"chips' energy {summary.chip_joules:,.0f} J, {summary.chip_joules_per_token:.4g} J a "
            "token, idle time and spares included"
        )
    if summary.work_imbalance is not None:
        line = f"FLOPs of the busiest chip over the mean: {summary.work_imbalance:.3f}"
        if summary.expert_imbalance is not None:
            line += f"; tokens that reach its experts: {summary.expert_imbalance:.3f}"
        yield line
    yield ""
    yield from _use_table(summary)
    for phase in summary.phases:
        yield ""
        yield from phase_lines(phase)
    yield ""
    yield error_in_words(error_of(summary.model_error))


def _use_table(summary: ProfileSummary) -> list[str]:
    """Busy shares: all steps, the busiest chip, each phase's mean chip."""
    rows: list[tuple[object, ...]] = [
        (
            use.engine,
            use.mean_share,
            percent(use.busiest_share),
            str(use.busiest_chip),
            *(phase.engines[index].mean_share for phase in summary.phases),
        )
        for index, use in enumerate(summary.engines)
    ]
    for name in ("mfu", "mbu"):
        of_phases = (getattr(phase, name) for phase in summary.phases)
        rows.append((name.upper(), getattr(summary, name), "", "", *of_phases))
    columns: list[Column[tuple[object, ...]]] = [
        Column("busy in steps", align="left"),
        *(Column(name, form=percent) for name in ("mean", "busiest", "chip")),
        *(Column(str(phase.phase), form=percent) for phase in summary.phases),
    ]
    return table_lines(table_of(columns, rows))


def phase_lines(phase: PhaseSummary) -> Iterator[str]:
    """One phase: time share, parts, bottleneck and what-ifs."""
    tokens = (phase.prefill_tokens / phase.steps, phase.decode_tokens / phase.steps)
    yield (
        f"{phase.phase}: {phase.steps:,} steps, {percent(phase.time_share)} of step time, "
        f"{phase.mean_ns / 1e6:.3f} ms each, {tokens[0]:,.0f} prompt and {tokens[1]:,.0f} decoded "
        f"tokens a step, {phase.chip_joules_per_token:.4g} J a token"
    )
    parts = [part for part in phase.parts[:_PARTS_SHOWN] if part.share >= _LEAST_SHARE]
    if parts:
        yield f"  time goes to: {', '.join(map(_part, parts))}"
    bottleneck = phase.bottleneck
    if bottleneck is None:
        yield "  bottleneck: none found" if phase.samples else "  bottleneck: no step was sampled"
        return
    yield f"  bottleneck: {bottleneck.as_bottleneck()}{_busy(phase.engines, bottleneck.what)}"
    helpful = [one for one in phase.what_ifs[:_WHAT_IFS_SHOWN] if one.shorter_share >= _LEAST_SHARE]
    yield (
        f"  what if ({phase.samples} steps costed again): "
        f"{'; '.join(one.in_words() for one in helpful) or 'nothing helps alone'}"
    )


def _busy(engines: Sequence[EngineUse], what: str) -> str:
    """The busy share of `what`'s engine, if it has one."""
    name = _ENGINE_OF.get(what, what)
    for use in engines:
        if use.engine == name:
            return f" ({name} busy {percent(use.mean_share)} of the time)"
    return ""


def _part(part: PartShare) -> str:
    waits = "" if part.bound is None else f" (for {part.bound})"
    return f"{part.part} {percent(part.share)}{waits}"
