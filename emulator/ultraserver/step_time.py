"""Duration of a counted step: terms, a calibration and an overlap policy. Pure and fast."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.overlap import Overlap
from emulator.ultraserver.step_parts import DISPATCH_COMBINE, CriticalPath, Parts, added
from emulator.ultraserver.step_rows import TimedStep
from emulator.ultraserver.step_terms import StepTerms

DRAFT: Final = "draft"
ROUNDING: Final = 1e-12
"""A sum in another order differs by less. What is that little above a whole number of nanoseconds
is that number: no rounding depends on the order."""


def whole_ns(duration_ns: float) -> int:
    """Rounded up."""
    return ceil(duration_ns * (1 - ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTime:
    """`rank_ns`: each rank's own time, waiting only for its group's experts.

    `parts_ns` of the slowest domain sum to `duration_ns`, with exposed communication only. `bound`:
    the engine that each part waits for. `computing` and `talking`: the paths whose computing and
    communication, less what hides, and the `drafts` after them, are the duration.
    """

    duration_ns: float
    rank_ns: Float64s  # [ranks]
    parts_ns: Parts
    bound: dict[str, str]
    computing: tuple[CriticalPath, ...]
    talking: tuple[CriticalPath, ...]
    drafts: "tuple[StepTime, ...]" = ()


def combine(
    terms: StepTerms, calibration: Calibration = ROOFLINE, overlap: Overlap = Overlap.NONE
) -> StepTime:
    """The step's duration; a step that cannot run as two batches runs as one.

    NONE: every exchange and collective is exposed. TWO_BATCH: while one half batch computes, the
    other's exchange runs (`two_batch_ns`), on cores that prompts lack. FULL: the longer of
    computing and communication. Collectives inside a rank hide in FULL alone.
    """
    if overlap is Overlap.TWO_BATCH and terms.halves is not None:
        beside = calibration.beside_exchanges() if terms.prefills.any() else calibration
        halves = tuple(TimedStep(half, beside) for half in terms.halves)
        own = _two_batch(TimedStep(terms, beside), (halves[0], halves[1]))
    elif overlap is Overlap.FULL:
        own = _fully_overlapped(TimedStep(terms, calibration))
    else:
        own = _one_after_the_other(TimedStep(terms, calibration))
    if not terms.drafts:
        return own
    once = without_host(calibration)
    drafts = tuple(combine(draft, once, overlap) for draft in terms.drafts)
    drafts_ns = sum(draft.duration_ns for draft in drafts)
    return replace(
        own,
        duration_ns=own.duration_ns + drafts_ns,
        rank_ns=own.rank_ns + np.sum([draft.rank_ns for draft in drafts], axis=0),
        parts_ns={**own.parts_ns, DRAFT: drafts_ns},
        drafts=drafts,
    )


def without_host(calibration: Calibration) -> Calibration:
    """Calibration of a part beside the model: the step's own overheads are counted once."""
    return replace(
        calibration,
        step_ns=ROOFLINE.step_ns,
        request_ns=ROOFLINE.request_ns,
        prefill_step_ns=ROOFLINE.prefill_step_ns,
    )


def _one_after_the_other(timed: TimedStep) -> StepTime:
    terms = timed.terms
    runs, kind_runs = terms.runs, timed.kind_runs
    segment_ns = timed.compute_ns + timed.communication_ns  # [segments, ranks]
    shared_ns = kind_runs @ (timed.expert_ns + timed.exchange_ns.sum(axis=0)[:, None])  # [domains]
    domain_ns = runs @ timed.slowest(segment_ns) + shared_ns
    domain = int(domain_ns.argmax())
    path = CriticalPath(timed, segment_ns, domain, runs=runs)
    return StepTime(
        duration_ns=float(domain_ns[domain]),
        rank_ns=runs @ segment_ns + np.repeat(shared_ns, terms.ranks_per_domain),
        parts_ns={**path.compute_parts(), **path.communication_parts()},
        bound=path.bound(),
        computing=(path,),
        talking=(path,),
    )


def _fully_overlapped(timed: TimedStep) -> StepTime:
    terms = timed.terms
    runs, kind_runs = terms.runs, timed.kind_runs
    experts_ns = kind_runs @ timed.expert_ns  # [domains]
    exchanges_ns = float(kind_runs @ timed.exchange_ns.sum(axis=0))
    computing_ns = runs @ timed.slowest(timed.compute_ns) + experts_ns
    communicating_ns = runs @ timed.slowest(timed.communication_ns) + exchanges_ns
    domain_ns = np.maximum(computing_ns, communicating_ns)
    domain = int(domain_ns.argmax())
    path = CriticalPath(timed, timed.compute_ns, domain, runs=runs)
    talking = CriticalPath(timed, timed.communication_ns, domain, runs=runs)
    hidden_ns = min(computing_ns[domain], communicating_ns[domain])
    shown = 1 - hidden_ns / communicating_ns[domain] if communicating_ns[domain] else 0.0
    exposed = {name: shown * ns for name, ns in talking.communication_parts().items()}
    return StepTime(
        duration_ns=float(domain_ns[domain]),
        rank_ns=np.maximum(
            runs @ timed.compute_ns + np.repeat(experts_ns, terms.ranks_per_domain),
            runs @ timed.communication_ns + exchanges_ns,
        ),
        parts_ns={**path.compute_parts(), **exposed},
        bound=path.bound(),
        computing=(path,),
        talking=(talking,),
    )


def _two_batch(whole: TimedStep, halves: tuple[TimedStep, TimedStep]) -> StepTime:
    """Layers of both half batches, then tail and host of the whole one."""
    terms = whole.terms
    whole_ns = whole.compute_ns + whole.communication_ns  # [segments, ranks]
    segment_ns = [half.compute_ns + half.communication_ns for half in halves]
    experts_ns = [half.expert_ns[half.terms.kind_of_layer] for half in halves]
    exchange_ns = [half.exchange_ns[:, half.terms.kind_of_layer] for half in halves]
    order = terms.segment_of_layer
    by_domain = [half.slowest(ns)[order] for half, ns in zip(halves, segment_ns, strict=True)]
    domain_ns = two_batch_ns(by_domain, experts_ns, exchange_ns) + whole.slowest(whole_ns)[-1]
    rank_ns = whole_ns[-1] + two_batch_ns(
        [ns[order] for ns in segment_ns],
        [np.repeat(ns, terms.ranks_per_domain, axis=1) for ns in experts_ns],
        exchange_ns,
    )
    domain = int(domain_ns.argmax())
    tail = np.arange(len(terms.runs)) == len(terms.runs) - 1
    path = CriticalPath(whole, whole_ns, domain, runs=terms.runs * tail, experts=False)
    paths = (
        path,
        *(
            CriticalPath(half, ns, domain, runs=terms.runs * ~tail)
            for half, ns in zip(halves, segment_ns, strict=True)
        ),
    )
    parts: Parts = {}
    for path in paths:
        parts = added(parts, added(path.compute_parts(), path.collective_parts()))
    duration_ns = float(domain_ns[domain])
    parts[DISPATCH_COMBINE] = duration_ns - sum(parts.values())
    return StepTime(
        duration_ns=duration_ns,
        rank_ns=rank_ns,
        parts_ns=parts,
        bound=paths[-1].bound(),
        computing=paths,
        talking=paths,
    )


def two_batch_ns(
    own_ns: list[Float64s], experts_ns: list[Float64s], exchange_ns: list[Float64s]
) -> Float64s:
    """Duration of all MoE layers of two half batches A and B in turns: -> [columns].

    `own_ns` and `experts_ns` of each half are [MoE layers, columns], `exchange_ns` its dispatches
    and combines, [2, MoE layers]. Each of a layer's four slots takes the longer of computing and
    communication: B attends, A dispatches; A's experts, B dispatches; B's experts, A combines; A
    attends in the next layer, B combines. A's first attention and B's last combine are exposed.
    """
    (own_a, own_b), (experts_a, experts_b) = own_ns, experts_ns
    (dispatch_a, combine_a), (dispatch_b, combine_b) = (ns[:, :, None] for ns in exchange_ns)
    slots = np.maximum(own_b, dispatch_a) + np.maximum(experts_a, dispatch_b)
    slots = slots + np.maximum(experts_b, combine_a)
    between = np.maximum(own_a[1:], combine_b[:-1])
    total: Float64s = own_a[0] + slots.sum(axis=0) + between.sum(axis=0) + combine_b[-1]
    return total
