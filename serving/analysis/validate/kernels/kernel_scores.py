"""Errors of fitted laws, with each machine, generation and stack left out in turn.

What beats the silicon is no measurement of what its row says: such rows are left out, and a whole
table of a machine and stack where more than a tenth of the rows that can be told beat it. Both are
listed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Bools, Float64s
from serving.analysis.validate.kernels.kernel_families import KernelFamily
from serving.analysis.validate.kernels.law_fit import FittedLaw, KernelRows, Strings

ALL: Final = "all"
WITH_EXCLUDED: Final = "with excluded"
LEFT_OUT: Final = ("machine", "generation", "stack")
TELLING_NS: Final = 30e3  # at peak rates: what is shorter is mostly start-up, and tells nothing
IMPOSSIBLE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScore:
    """Absolute relative errors of some kernels: median, 90th percentile, and the median's bias.

    `bias`: of predicted over measured, less 1.
    """

    kernels: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, predicted_ns: Float64s, measured_ns: Float64s) -> "KernelScore":
        """Of at least one kernel."""
        ratio = predicted_ns / measured_ns
        error = np.abs(ratio - 1)
        return cls(
            kernels=len(ratio),
            median=float(np.median(error)),
            p90=float(np.quantile(error, 0.9)),
            bias=float(np.median(ratio) - 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamilyScores:
    """A family's law fitted to all, and errors of what a fit had not seen.

    Attributes:
        fitted: on all kernels.
        known: errors of `fitted`, by machine.
        unseen: errors by fits without the level's value, by level and value; "all" pools them, and
            "with excluded" pools them with what was excluded, predicted by the same fits.
        excluded: kernels that were not fitted, by reason.
        excluded_lines: single rows that beat the silicon.
        excluded_score: errors of `fitted` on all that was excluded; None without any.
    """

    family: KernelFamily
    fitted: FittedLaw
    known: dict[str, KernelScore]
    unseen: dict[str, dict[str, KernelScore]]
    excluded: dict[str, int]
    excluded_lines: tuple[str, ...]
    excluded_score: KernelScore | None


def scores_of(family: KernelFamily, rows: KernelRows) -> FamilyScores:
    """Fit the family's law to `rows`, and again without each value of the levels LEFT_OUT."""
    usable, beating, lines = _usable(rows)
    excluded = {**rows.excluded, **beating}
    others, rows = rows.taken(~usable), rows.taken(usable)
    fitted = FittedLaw(family.law, family.priors, rows)
    everything = fitted.predict_ns(rows)
    known = {
        machine: KernelScore.of(everything[own], rows.measured_ns[own])
        for machine, own in _values(rows.levels["machine"])
    }
    known[ALL] = KernelScore.of(everything, rows.measured_ns)
    return FamilyScores(
        family=family,
        fitted=fitted,
        known=known,
        unseen={level: _without_each(family, rows, others, level) for level in LEFT_OUT},
        excluded=excluded,
        excluded_lines=lines,
        excluded_score=KernelScore.of(fitted.predict_ns(others), others.measured_ns)
        if len(others)
        else None,
    )


def _values(texts: Strings) -> Iterator[tuple[str, Bools]]:
    for value in np.unique(texts).tolist():
        yield value, texts == value


def _without_each(
    family: KernelFamily, rows: KernelRows, others: KernelRows, level: str
) -> dict[str, KernelScore]:
    """Of `rows`, and pooled with the excluded `others`; empty where there is but one value."""
    found = {}
    blind_ns, others_ns = np.zeros_like(rows.measured_ns), np.zeros_like(others.measured_ns)
    for value, own in _values(rows.levels[level]):
        if own.all():
            return {}
        fit = FittedLaw(family.law, family.priors, rows.taken(~own))
        blind_ns[own] = fit.predict_ns(rows.taken(own))
        found[value] = KernelScore.of(blind_ns[own], rows.measured_ns[own])
        also = others.levels[level] == value
        if also.any():
            others_ns[also] = fit.predict_ns(others.taken(also))
    found[ALL] = KernelScore.of(blind_ns, rows.measured_ns)
    if len(others):
        told = others_ns > 0  # a value may have excluded kernels alone
        found[WITH_EXCLUDED] = KernelScore.of(
            np.concatenate([blind_ns, others_ns[told]]),
            np.concatenate([rows.measured_ns, others.measured_ns[told]]),
        )
    return found


def _usable(rows: KernelRows) -> tuple[Bools, dict[str, int], tuple[str, ...]]:
    """Rows to fit; counts of the others by reason; places of single ones."""
    least_ns = rows.shape.least_ns(rows.silicon)
    beats = rows.measured_ns < least_ns
    telling = least_ns > TELLING_NS
    usable = np.ones(len(rows), dtype=np.bool_)
    excluded = {}
    for machine, on in _values(rows.levels["machine"]):
        for stack, by in _values(rows.levels["stack"]):
            table = on & by
            told = table & telling
            if told.any() and (beats & told).sum() > IMPOSSIBLE_SHARE * told.sum():
                share = (beats & told).sum() / told.sum()
                reason = f"{machine} {stack}: {share:.0%} of its long kernels beat the silicon"
                excluded[reason] = int(table.sum())
                usable &= ~table
    alone = beats & usable
    if alone.any():
        excluded["single kernels that beat the silicon"] = int(alone.sum())
    return usable & ~beats, excluded, tuple(rows.lines[alone].tolist())
