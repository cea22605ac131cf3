"""An explained step: its waterfall, bounds, next best layout, sensitivities and interval."""

from dataclasses import dataclass

from emulator.specs.shipped_fits import PredictionInterval
from emulator.ultraserver.step_waterfall import WaterfallTerm
from emulator.ultraserver.what_if import SPEEDLESS
from emulator.units import NS_PER_S
from serving.analysis.explain.other_layouts import (
    OtherLayout,
    by_part,
    changes_ns,
    other_layouts,
)
from serving.analysis.explain.sensitivity import Sensitivity, sensitivities
from serving.analysis.explain.step_question import CountedSteps, StepQuestion
from serving.analysis.profile.profile_summary import WhatIf
from serving.analysis.profile.profiled_run import WHAT_IF_FACTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A time from elsewhere beside `predicted_ns`, or the explained step's."""

    what: str
    ns: float
    predicted_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a step takes `step_ns`.

    Attributes:
        terms: sum to `step_ns`.
        engines_ns: the terms by what they wait for, longest first.
        bound: the engine that each part with work waits for.
        what_ifs: strongest first.
        layouts: others on the same chips, fastest first; `changes_ns` of the first, by part.
        compared: the same step in a file, measured, or of a server.
        notes: what else there is to say of the subject.
    """

    question: StepQuestion
    step_ns: float
    terms: tuple[WaterfallTerm, ...]
    engines_ns: dict[str, float]
    bound: dict[str, str]
    what_ifs: tuple[WhatIf, ...]
    layouts: tuple[OtherLayout, ...]
    changes_ns: dict[str, float]
    sensitivities: tuple[Sensitivity, ...]
    interval: PredictionInterval | None
    compared: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def parts_ns(self) -> dict[str, float]:
        """The terms by part, longest first."""
        return dict(sorted(by_part(self.terms).items(), key=lambda each: -each[1]))

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Of the engine: outputs of decodes, or the prompt's tokens."""
        return self.rate_at(self.step_ns)

    def rate_at(self, step_ns: float) -> float:
        """Tokens per second and chip if the same requests' step took so long."""
        question = self.question
        tokens = question.load.tokens(question.requests) * question.tokens_per_step
        return tokens / step_ns * NS_PER_S / question.chips

    @property
    def best_layout(self) -> OtherLayout | None:
        """The fastest other layout."""
        return self.layouts[0] if self.layouts else None


def explain(
    question: StepQuestion, *, compared: tuple[Compared, ...] = (), notes: tuple[str, ...] = ()
) -> Explanation:
    """Explain the question's steps; raises ConfigError as their cost model."""
    counted = question.counted()
    step_ns = counted.duration_ns()
    terms = counted.waterfall()
    engines: dict[str, float] = {}
    for term in terms:
        engines[term.engine] = engines.get(term.engine, 0.0) + term.ns
    layouts = other_layouts(question)
    return Explanation(
        question=question,
        step_ns=step_ns,
        terms=terms,
        engines_ns=dict(sorted(engines.items(), key=lambda each: -each[1])),
        bound=counted.bound(),
        what_ifs=what_ifs_of(counted, step_ns),
        layouts=layouts,
        changes_ns=changes_ns(layouts[0], terms) if layouts else {},
        sensitivities=sensitivities(question, counted),
        interval=question.intervals.get("tpot"),
        compared=compared,
        notes=notes,
    )


def what_ifs_of(counted: CountedSteps, step_ns: float) -> tuple[WhatIf, ...]:
    """Each resource `WHAT_IF_FACTOR` times as fast, the strongest first."""
    found = counted.what_ifs_ns(WHAT_IF_FACTOR)
    each = [
        WhatIf(
            what=what,
            factor=None if what in SPEEDLESS else WHAT_IF_FACTOR,
            shorter_share=1 - ns / step_ns,
        )
        for what, ns in found.items()
    ]
    return tuple(sorted(each, key=lambda one: -one.shorter_share))
