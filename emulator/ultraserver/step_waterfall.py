"""A step's duration as terms that sum to it, each with its work, rate, law and figures.

The terms follow the slowest chips of the slowest domain with experts spread evenly and no chip
slow. Waiting, overlap (below zero), the power budget and rounding are terms of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.figure import Figure, NamedFigures
from emulator.timing.roofline import DMA, ENGINES, TENSOR
from emulator.ultraserver.step_cost import COLLECTIVES, StepCostModel
from emulator.ultraserver.step_parts import (
    BOTH_WAYS,
    COLLECTIVE_LAUNCH,
    DISPATCH_COMBINE,
    EXPERTS,
    THROTTLE,
    TP_COLLECTIVES,
    CriticalPath,
)
from emulator.ultraserver.step_rows import HOST_OVERHEADS, RowTimes
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms
from emulator.ultraserver.step_time import DRAFT, StepTime, combine, whole_ns
from emulator.ultraserver.step_work import step_work
from emulator.ultraserver.waterfall_figures import WaterfallFigures
from emulator.ultraserver.what_if import at_full_speed, even_experts
from emulator.units import NS_PER_S

WAITING: Final = "waiting"
HIDDEN: Final = "overlap"
ROUNDING: Final = "rounding"
_LEAST_NS: Final = 1e-6
"""Of a term: less is a rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallTerm:
    """A part of a step's time.

    Attributes:
        part: of the step, as in `StepCost.parts_ns`.
        term: what takes the time.
        law: how it follows from `amount` and `figures`.
        ns: below zero where time hides behind other time.
        amount: in `unit`: bytes, flops, or how many times; None where a law has none.
        figures: those of the catalog and the calibration that the law reads, by name.
    """

    part: str
    term: str
    engine: str
    law: str
    ns: float
    amount: float | None = None
    unit: str = ""
    figures: NamedFigures = ()

    @property
    def key(self) -> tuple[str, str]:
        """Shared by the same term of several steps."""
        return (self.part, self.term)


def waterfall(
    model: StepCostModel,
    batch: StepBatch,
    loads: ExpertLoads | None = None,
    slow_factor: Float64s | None = None,
) -> tuple[WaterfallTerm, ...]:
    """The terms of `model.cost(batch, loads, slow_factor)`, which sum to its duration.

    With counted loads the experts' terms are of expected ones, and what the busiest chip adds is a
    wait. Raises ValueError as `StepCostModel.cost`.
    """
    terms = model.terms(batch, loads, slow_factor)
    if terms is None:
        return ()

    def free(each: StepTerms) -> StepTime:
        return combine(each, model.calibration, model.overlap)

    equal = at_full_speed(terms)
    expected = equal if loads is None else model.terms(batch)
    assert expected is not None
    base = free(expected if expected.experts is None else even_experts(expected))
    equal_ns, free_ns = free(equal).duration_ns, free(terms).duration_ns
    held_ns = model.throttle(step_work(terms), free_ns) * free_ns
    found = list(_terms_of(base, WaterfallFigures(model, terms)))
    chip = model.system.chip
    found += [
        _wait(
            "busiest chip's experts",
            "step - step with the mean chip's experts, by the stated routing",
            equal_ns - base.duration_ns,
        ),
        _wait("slow chips", "step - step at full speed", free_ns - equal_ns),
        WaterfallTerm(
            part=THROTTLE,
            term="power budget",
            engine=THROTTLE,
            law="(watts wanted above idle / allowed - 1) x step",
            ns=held_ns - free_ns,
            figures=(("budget_watts", chip.budget_watts), ("idle_watts", chip.idle_watts)),
        ),
    ]
    kept = merged([found], [1.0])
    return (
        *kept,
        WaterfallTerm(
            part=ROUNDING,
            term="to whole ns",
            engine=ROUNDING,
            law="rounded up",
            ns=whole_ns(held_ns) - sum(term.ns for term in kept),
        ),
    )


def _wait(term: str, law: str, ns: float) -> WaterfallTerm:
    return WaterfallTerm(part=WAITING, term=term, engine=WAITING, law=law, ns=ns)


def merged(
    falls: Sequence[Sequence[WaterfallTerm]], weights: Sequence[float]
) -> tuple[WaterfallTerm, ...]:
    """Several waterfalls as one, each `weights` times, the same terms added up; no zeros."""
    sums: dict[tuple[str, str], WaterfallTerm] = {}
    for terms, weight in zip(falls, weights, strict=True):
        for term in terms:
            known = sums.get(term.key)
            amount = None if term.amount is None else weight * term.amount
            if known is not None and known.amount is not None and amount is not None:
                amount += known.amount
            ns = weight * term.ns + (0.0 if known is None else known.ns)
            sums[term.key] = replace(term, ns=ns, amount=amount)
    return tuple(term for term in sums.values() if abs(term.ns) > _LEAST_NS)


def _terms_of(time: StepTime, sources: WaterfallFigures) -> Iterator[WaterfallTerm]:
    """The terms of a step and its drafts; all chips at full speed."""
    drafts_ns = 0.0
    own: list[WaterfallTerm] = []
    for path in time.computing:
        own += _computing(path, sources)
    for path in time.talking:
        own += _talking(path, sources)
    for draft in time.drafts:
        drafts_ns += draft.duration_ns
        for term in _terms_of(draft, sources):
            yield replace(term, part=f"{DRAFT} {term.part}")
    yield from own
    yield WaterfallTerm(
        part=HIDDEN,
        term="communication beside computing",
        engine=COLLECTIVES,
        law="step - computing - communication",
        ns=time.duration_ns - drafts_ns - sum(term.ns for term in own),
    )


def _computing(path: CriticalPath, sources: WaterfallFigures) -> Iterator[WaterfallTerm]:
    timed = path.timed
    rows = timed.terms.rank
    for place, part in enumerate(timed.terms.parts):
        only = np.zeros(len(timed.terms.parts))
        only[place] = 1.0

        def of_row(row_ns: Float64s, only: Float64s = only) -> float:
            return float(only @ path.by_row(row_ns))

        yield from _work(path, part, rows, timed.rows, of_row, sources)
    if path.experts is not None and timed.terms.experts is not None:

        def of_chips(kind_ns: Float64s) -> float:
            return float(path.on_chips(kind_ns))

        yield from _work(path, EXPERTS, timed.terms.experts, path.experts, of_chips, sources)
    yield from _overheads(path, sources)


Summed = Callable[[Float64s], float]
"""From nanoseconds of rows [rows, columns] to those of a path."""


def _work(
    path: CriticalPath,
    part: str,
    terms: PhaseTerms,
    times: RowTimes,
    summed: Summed,
    sources: WaterfallFigures,
) -> Iterator[WaterfallTerm]:
    """A part's work on its busiest engine, and the wait for the others."""
    calibration = path.timed.calibration
    busiest = times.engine_ns.argmax(axis=0)  # [rows, columns]
    for place, engine in enumerate(ENGINES):
        mine = (busiest == place).astype(np.float64)
        if not summed(mine * times.engine_ns[place]):
            continue
        real_ns = 0.0
        for term in _at_peak(part, place, mine, terms, summed, sources):
            real_ns += term.ns
            yield term
        peak_ns = summed(mine * terms.engine_ns[place])
        share = {TENSOR: "tensor_share", DMA: "memory_share"}.get(place)
        if place in _LOST:
            law = f"{engine} at its peak rate, beyond real work"
            yield WaterfallTerm(
                part=part, term=_LOST[place], engine=engine, law=law, ns=peak_ns - real_ns
            )
        if share is not None:
            yield WaterfallTerm(
                part=part,
                term=f"{engine} below its peak",
                engine=engine,
                law=f"time at the peak x (1 / {share} - 1)",
                ns=summed(mine * times.engine_ns[place]) - peak_ns,
                figures=sources.constants(share, getattr(calibration, share)),
            )
    yield WaterfallTerm(
        part=part,
        term="engines take turns",
        engine=WAITING,
        law="norm of the engines' times - the longest",
        ns=summed(times.busiest_ns - times.engine_ns.max(axis=0)),
        figures=(("turn_taking", calibration.turn_taking),),
    )


_LOST: Final = {TENSOR: "part-filled tiles", DMA: "small transfers"}


def _at_peak(
    part: str,
    place: int,
    mine: Float64s,
    terms: PhaseTerms,
    summed: Summed,
    sources: WaterfallFigures,
) -> Iterator[WaterfallTerm]:
    """The real work of an engine at its peak rate; `mine` [rows, columns]: where it counts."""
    engine = ENGINES[place]
    if place == TENSOR:
        for rate, dtype, figures in sources.products():
            flops = summed(mine * terms.flops[rate])
            yield WaterfallTerm(
                part=part,
                term=f"{dtype} products",
                engine=engine,
                law="flops / rate",
                ns=flops / float(sources.rates[rate]),
                amount=flops,
                unit="flops",
                figures=figures,
            )
        return
    if place == DMA:
        moved = summed(mine * terms.hbm_bytes)
        yield WaterfallTerm(
            part=part,
            term="bytes of HBM",
            engine=engine,
            law="bytes / rate",
            ns=moved * NS_PER_S / sources.memory[0][1].value,
            amount=moved,
            unit="bytes",
            figures=sources.memory,
        )
        return
    busy_ns = summed(mine * terms.engine_ns[place])
    name, figure = sources.other_engine(engine)
    yield WaterfallTerm(
        part=part,
        term=f"{engine} operations",
        engine=engine,
        law="operations / rate",
        ns=busy_ns,
        amount=busy_ns * figure.value / NS_PER_S,
        unit="operations",
        figures=((name, figure),),
    )


_COUNTED: Final = frozenset({"fill_drain", "dma_start", "kernel_launch", "graph_launch"})
"""Overheads of the chip that are a count times one figure."""
_CALIBRATED: Final = {
    "layer": "layer_ns",
    "expert_layer": "expert_layer_ns",
    "step": "step_ns",
    "request": "request_ns",
    "prefill_step": "prefill_step_ns",
}
_OVERHEAD_LAWS: Final = {
    "ramp": "lost while the clock ramps up",
    "core_collectives": "bytes / rate of a core's DMAs + starts",
}


def _overheads(path: CriticalPath, sources: WaterfallFigures) -> Iterator[WaterfallTerm]:
    for name, ns in path.overheads().items():
        figures = sources.own.get(name, ())
        if name in _CALIBRATED:
            used = getattr(path.timed.calibration, _CALIBRATED[name])
            figures, each = sources.constants(_CALIBRATED[name], used), used.value
        else:
            each = figures[0][1].value if name in _COUNTED else 0.0
        yield WaterfallTerm(
            part=name,
            term="overhead",
            engine="host" if name in HOST_OVERHEADS else "overhead",
            law=_OVERHEAD_LAWS.get(name, "count x figures"),
            ns=ns,
            amount=ns / each if each else None,
            unit="times" if each else "",
            figures=figures,
        )


def _talking(path: CriticalPath, sources: WaterfallFigures) -> Iterator[WaterfallTerm]:
    """Collectives inside ranks, then the exchange of tokens."""
    rank, rows, calibration = path.timed.terms.rank, path.timed.rows, path.timed.calibration

    def of(row_ns: Float64s) -> float:
        return float(path.by_row(row_ns).sum())

    yield from _links(
        TP_COLLECTIVES,
        total_ns=of(rows.link_ns),
        at_peak_ns=of(rank.link_ns),
        latency_ns=of(rank.latency_ns),
        moved_bytes=of(rank.link_bytes),
        share=("link_share", calibration.link_share),
        figures=(sources.rank_links, sources.latency),
    )
    used = calibration.collective_ns
    figures = sources.constants("collective_ns", used)
    yield _launches("collectives", of(rows.launch_ns), used, figures)
    if path.experts is None or path.timed.terms.experts is None:
        return
    experts, times, runs = path.timed.terms.experts, path.experts, path.timed.kind_runs
    slowest = (np.arange(len(runs)), times.communication_ns.argmax(axis=1))
    spared_ns = (1 - sources.dispatch_share) * experts.link_ns.max(axis=1)  # [kinds], at the peak
    slower = path.timed.terms.stores_slower  # [kinds]
    at_peak_ns = (BOTH_WAYS * experts.link_ns[slowest] - spared_ns) / slower
    latency_ns = BOTH_WAYS * experts.latency_ns[slowest]
    launch_ns = BOTH_WAYS * times.launch_ns[slowest]
    exchange_ns = path.timed.exchange_ns.sum(axis=0)
    shares = [(runs * (slower == 1), (sources.exchange_share, calibration.exchange_share), "links")]
    if calibration.store_share is not None:
        stores = ("store_share", calibration.store_share)
        shares.append((runs * (slower > 1), stores, "links inside domains"))
    for own, share, which in shares:
        yield from _links(
            DISPATCH_COMBINE,
            total_ns=float(own @ (exchange_ns - launch_ns)),
            at_peak_ns=float(own @ at_peak_ns),
            latency_ns=float(own @ latency_ns),
            moved_bytes=float(own @ experts.link_bytes[slowest]) * (1 + sources.dispatch_share),
            share=share,
            figures=(sources.group_links, sources.latency),
            which=which,
        )
    used = calibration.exchange_ns
    yield _launches("exchanges", float(runs @ launch_ns), used, ((sources.exchange_ns, used),))


def _links(
    part: str,
    *,
    total_ns: float,
    at_peak_ns: float,
    latency_ns: float,
    moved_bytes: float,
    share: tuple[str, Figure],
    figures: tuple[NamedFigures, NamedFigures],
    which: str = "links",
) -> Iterator[WaterfallTerm]:
    rates, latencies = figures
    yield WaterfallTerm(
        part=part,
        term="bytes over links",
        engine=COLLECTIVES,
        law="bytes of the busiest tier / its rate",
        ns=at_peak_ns,
        amount=moved_bytes,
        unit="bytes",
        figures=rates,
    )
    yield WaterfallTerm(
        part=part,
        term=f"{which} below their peak",
        engine=COLLECTIVES,
        law=f"time at the peak x (1 / {share[0]} - 1)",
        ns=total_ns - latency_ns - at_peak_ns,
        figures=(share,),
    )
    yield WaterfallTerm(
        part=part,
        term="starts and hops",
        engine=COLLECTIVES,
        law="steps of the collective x (start + hops)",
        ns=latency_ns,
        figures=latencies,
    )


def _launches(what: str, ns: float, used: Figure, figures: NamedFigures) -> WaterfallTerm:
    return WaterfallTerm(
        part=COLLECTIVE_LAUNCH,
        term=f"launches of {what}",
        engine=COLLECTIVES,
        law="count x figures",
        ns=ns,
        amount=ns / used.value if used.value else None,
        unit="times" if used.value else "",
        figures=figures,
    )
