"""Work of a counted step on each chip: busy engines and links, flops, bytes."""

from dataclasses import dataclass, fields

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.roofline import DMA, TENSOR
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """Work of every chip at peak rates, slow chips apart.

    The matrix engine is busy for issued work and while its clock ramps, the DMA engines also with
    small transfers' overhead and sums over logical cores; `flops` and bytes are the products' and
    transfers' own. `dispatched_bytes`: the part of `link_bytes` towards other chips' experts,
    forwarded rows included.
    """

    engine_ns: Float64s  # [engines, chips]
    link_ns: Float64s  # [chips], like all others
    flops: Float64s  # [rates, chips]
    hbm_bytes: Float64s
    link_bytes: Float64s
    dispatched_bytes: Float64s | float = 0.0

    def __add__(self, other: "StepWork") -> "StepWork":
        return StepWork(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in fields(self)
            }
        )


def step_work(terms: StepTerms) -> StepWork:
    """Work of a whole step: segments and experts, in halves if it has them, and drafts."""
    tail = np.arange(len(terms.runs)) == len(terms.runs) - 1
    if terms.halves is None:
        work = _work(terms, terms.runs, experts=True)
    else:
        work = _work(terms, terms.runs * tail, experts=False)
        for half in terms.halves:
            work = work + _work(half, terms.runs * ~tail, experts=True)
    for draft in terms.drafts:
        work = work + step_work(draft)
    return work


def _work(terms: StepTerms, runs: Float64s, *, experts: bool) -> StepWork:
    work = rows_work(terms.rank, runs @ terms.times)
    by_chip = StepWork(
        **{
            field.name: np.repeat(getattr(work, field.name), terms.tp, axis=-1)
            for field in fields(work)
        }
    )
    if terms.experts is None or not experts:
        return by_chip
    return by_chip + rows_work(
        terms.experts, terms.runs_of_kind, dispatch_share=terms.dispatch_share
    )


def rows_work(terms: PhaseTerms, times: Float64s, *, dispatch_share: float = 0.0) -> StepWork:
    """Rows `times` [rows] over; so much of each row's links again for a dispatch before it."""
    exchanges, link_bytes = 1 + dispatch_share, times @ terms.link_bytes
    engine_ns = np.einsum("erc,r->ec", terms.engine_ns, times)
    engine_ns[TENSOR] += times @ terms.ramp_ns
    engine_ns[DMA] += times @ terms.core_moving_ns
    return StepWork(
        engine_ns=engine_ns,
        link_ns=exchanges * (times @ terms.link_ns),
        flops=np.einsum("erc,r->ec", terms.flops, times),
        hbm_bytes=times @ terms.hbm_bytes,
        link_bytes=exchanges * link_bytes,
        dispatched_bytes=dispatch_share * link_bytes,
    )
