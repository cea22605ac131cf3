"""Sums of a profiled run: utilisation, MFU, MBU and each phase's bottleneck.

Shares are of the time in steps; bottlenecks come from sampled steps, costed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.ultraserver.ceilings import Ceilings
from emulator.ultraserver.what_if import EVEN_EXPERTS, FULL_SPEED, SPEEDLESS
from emulator.units import NS_PER_S
from reporting.numbers import percent
from serving.analysis.profile.profiled_run import ProfiledRun
from serving.analysis.steady_state.model_error import model_error, plain_error
from serving.wire.step_record import StepPhase, StepRecord, StepWhatIf

Float64s = NDArray[np.float64]

_TROUBLE_OF: Final = {
    EVEN_EXPERTS: "uneven experts",
    FULL_SPEED: "slow chips",
    "memory": "HBM",
    "links": "links between chips",
}
"""Names as a bottleneck, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """An engine's busy share of step time, on the mean and the busiest chip."""

    engine: str
    mean_share: float
    busiest_share: float
    busiest_chip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShare:
    """A part's share of the steps' duration, on the slowest chips."""

    part: str
    share: float
    bound: str | None  # the engine that it waits for longest, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The share by which sampled steps are shorter with `what` `factor` times as fast.

    `factor` is None for `emulator.ultraserver.what_if.SPEEDLESS`.
    """

    what: str
    factor: float | None
    shorter_share: float

    @property
    def trouble(self) -> str:
        """What it is called as a bottleneck."""
        return _TROUBLE_OF.get(self.what, self.what)

    @property
    def share(self) -> float:
        """Of the steps' time that goes to it, overlap and waiting included: by how much they would
        be shorter if it took none.
        """
        gone = 1.0 if self.factor is None else self.factor / (self.factor - 1)
        return min(1.0, self.shorter_share * gone)

    def as_bottleneck(self) -> str:
        """As `HBM, 62.0 % of the step`."""
        return f"{self.trouble}, {percent(self.share)} of the step"

    def in_words(self) -> str:
        """What is faster, and by how much the steps are shorter."""
        speed = "" if self.factor is None else f" {self.factor:g} x as fast"
        return f"{self.what}{speed}: {percent(self.shorter_share)} shorter"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """The steps of one phase.

    Attributes:
        time_share: of all time in steps.
        mfu: flops over those possible; `mbu` the same of HBM bytes.
        flops_per_hbm_byte: None without bytes.
        parts: largest first.
        what_ifs: strongest first; empty without samples.
    """

    phase: StepPhase
    steps: int
    time_share: float
    mean_ns: float
    prefill_tokens: int
    decode_tokens: int
    engines: tuple[EngineUse, ...]
    mfu: float
    mbu: float
    flops_per_hbm_byte: float | None
    chip_joules_per_token: float
    parts: tuple[PartShare, ...]
    samples: int
    what_ifs: tuple[WhatIf, ...]

    @property
    def bottleneck(self) -> WhatIf | None:
        """The strongest of `what_ifs`; None when none shortens the phase."""
        return self.what_ifs[0] if self.what_ifs and self.what_ifs[0].shorter_share > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """A run in sums; times are emulated seconds.

    Attributes:
        window_s: `step_s` in steps, `pause_s` held up by recoveries and expert moves, the rest
            idle or waiting for the host.
        work_imbalance: flops of each step's busiest chip over the mean chip's, weighted by flops.
        expert_imbalance: tokens of the busiest chip over the mean, where counted.
        model_error: by metric, measured over predicted of machines that no fit had seen: the least
            and the most of four of five; nothing of a roofline.
        chip_joules: of all chips, with spares, without racks and facility.
    """

    source: str
    system: str
    model: str
    chips: int
    ceilings: Ceilings
    steps: int
    dropped: int
    window_s: float
    step_s: float
    pause_s: float
    prefill_tokens: int
    decode_tokens: int
    engines: tuple[EngineUse, ...]
    mfu: float
    mbu: float
    flops_per_hbm_byte: float | None
    work_imbalance: float | None
    expert_imbalance: float | None
    chip_joules: float
    chip_joules_per_token: float | None
    model_error: dict[str, tuple[float, float]]
    phases: tuple[PhaseSummary, ...]


def summarize(run: ProfiledRun, ceilings: Ceilings) -> ProfileSummary:
    """Summarise a run; raises ValueError for one without steps."""
    if not run.steps:
        raise ValueError("a run without steps has no shares")
    whole = _Sums(run.steps, ceilings)
    joules = whole.joules + _idle_joules(run, ceilings)
    by_phase = {phase: [step for step in run.steps if step.phase is phase] for phase in StepPhase}
    return ProfileSummary(
        source=run.source,
        system=run.system,
        model=run.model,
        chips=len(run.steps[0].chips),
        ceilings=ceilings,
        steps=len(run.steps),
        dropped=run.dropped,
        window_s=_window_ns(run) / NS_PER_S,
        step_s=whole.duration_ns / NS_PER_S,
        pause_s=sum(step.pause_ns for step in run.steps) / NS_PER_S,
        prefill_tokens=whole.prefill_tokens,
        decode_tokens=whole.decode_tokens,
        engines=whole.engines(),
        mfu=whole.mfu,
        mbu=whole.mbu,
        flops_per_hbm_byte=whole.intensity,
        work_imbalance=whole.imbalance,
        expert_imbalance=run.expert_imbalance,
        chip_joules=joules,
        chip_joules_per_token=joules / whole.tokens,
        model_error=plain_error(model_error(run.calibration)),
        phases=tuple(
            _phase(phase, steps, whole, ceilings, run.what_ifs)
            for phase, steps in by_phase.items()
            if steps
        ),
    )


def _window_ns(run: ProfiledRun) -> int:
    """The window, without dropped steps."""
    begin_ns = run.begin_ns
    if run.dropped:
        begin_ns = run.steps[0].begin_ns - run.steps[0].pause_ns
    # A step under way when the recording ended is in it as a whole.
    return max(run.end_ns, run.steps[-1].end_ns) - begin_ns


def _idle_joules(run: ProfiledRun, ceilings: Ceilings) -> float:
    """Energy of chips between steps, and of spares throughout."""
    positions = len(run.steps[0].chips)
    step_ns = sum(step.duration_ns for step in run.steps)
    window_ns = _window_ns(run)
    spares = max(0, len(run.chips) - positions)
    chip_ns = positions * (window_ns - step_ns) + spares * window_ns
    return ceilings.idle_watts * chip_ns / NS_PER_S


class _Sums:
    """Totals of steps; arrays go by position."""

    def __init__(self, steps: Sequence[StepRecord], ceilings: Ceilings) -> None:
        self._steps = steps
        self._ceilings = ceilings
        self._chips = len(steps[0].chips)
        self._durations_ns = np.array([step.duration_ns for step in steps])
        self.duration_ns = int(self._durations_ns.sum())
        self.prefill_tokens = sum(sum(step.prefill_tokens) for step in steps)
        self.decode_tokens = sum(sum(step.decode_tokens) for step in steps)
        self._flops = np.array([step.flops for step in steps])  # [steps, positions]
        self._hbm_bytes = np.array([step.hbm_bytes for step in steps])
        watts = np.array([step.watts for step in steps]).sum(axis=1)
        self.joules = float(watts @ self._durations_ns) / NS_PER_S

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def mfu(self) -> float:
        return self._share_of(self._flops, self._ceilings.flops_per_s)

    @property
    def mbu(self) -> float:
        return self._share_of(self._hbm_bytes, self._ceilings.hbm_bytes_per_s)

    def _share_of(self, done: Float64s, per_s: float) -> float:
        possible = per_s * self._chips * self.duration_ns / NS_PER_S
        return float(done.sum() / possible)

    @property
    def intensity(self) -> float | None:
        moved = float(self._hbm_bytes.sum())
        return float(self._flops.sum()) / moved if moved else None

    @property
    def imbalance(self) -> float | None:
        mean = float(self._flops.mean(axis=1).sum())
        return float(self._flops.max(axis=1).sum()) / mean if mean else None

    def engines(self) -> tuple[EngineUse, ...]:
        busy: dict[str, Float64s] = {}  # [positions]
        for step in self._steps:
            for engine in step.engines:
                so_far = busy.get(engine.engine, np.zeros(self._chips))
                busy[engine.engine] = so_far + np.array(engine.busy_ns)
        chips = self._steps[-1].chips
        return tuple(
            EngineUse(
                engine=name,
                mean_share=float(busy_ns.mean()) / self.duration_ns,
                busiest_share=float(busy_ns.max()) / self.duration_ns,
                busiest_chip=chips[int(busy_ns.argmax())],
            )
            for name, busy_ns in busy.items()
        )

    def parts(self) -> tuple[PartShare, ...]:
        totals: dict[str, dict[str | None, float]] = {}  # by part, then by engine
        for step in self._steps:
            for part, part_ns in step.parts_ns.items():
                by_engine, engine = totals.setdefault(part, {}), step.bound.get(part)
                by_engine[engine] = by_engine.get(engine, 0.0) + part_ns
        shares = [
            PartShare(
                part=part,
                share=sum(by_engine.values()) / self.duration_ns,
                bound=max(by_engine, key=lambda engine: by_engine[engine]),
            )
            for part, by_engine in totals.items()
        ]
        return tuple(sorted(shares, key=lambda part: -part.share))


def _phase(
    phase: StepPhase,
    steps: Sequence[StepRecord],
    whole: _Sums,
    ceilings: Ceilings,
    what_ifs: Iterable[StepWhatIf],
) -> PhaseSummary:
    sums = _Sums(steps, ceilings)
    sampled = [each for each in what_ifs if each.phase is phase]
    return PhaseSummary(
        phase=phase,
        steps=len(steps),
        time_share=sums.duration_ns / whole.duration_ns,
        mean_ns=sums.duration_ns / len(steps),
        prefill_tokens=sums.prefill_tokens,
        decode_tokens=sums.decode_tokens,
        engines=sums.engines(),
        mfu=sums.mfu,
        mbu=sums.mbu,
        flops_per_hbm_byte=sums.intensity,
        chip_joules_per_token=sums.joules / sums.tokens,
        parts=sums.parts(),
        samples=len(sampled),
        what_ifs=_what_ifs(sampled),
    )


def _what_ifs(sampled: Sequence[StepWhatIf]) -> tuple[WhatIf, ...]:
    """Answers of all sampled steps, weighted by duration."""
    total_ns = sum(step.duration_ns for step in sampled)
    if not total_ns:
        return ()
    # A resource that a step was not tried with, as none of its chips was slow, leaves it as it is.
    tried = dict.fromkeys(what for step in sampled for what in step.what_if_ns)
    found = [
        WhatIf(
            what=what,
            factor=None if what in SPEEDLESS else sampled[0].factor,
            shorter_share=1
            - sum(step.what_if_ns.get(what, step.duration_ns) for step in sampled) / total_ns,
        )
        for what in tried
    ]
    return tuple(sorted(found, key=lambda each: -each.shorter_share))
