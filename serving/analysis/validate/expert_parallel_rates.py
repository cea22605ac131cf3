"""Predictions of large expert-parallel deployments: DeepSeek's own, SGLang's, DeepEP's kernels.

By the calibration that ships, with even routing; two half batches overlap.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.fabric.tiers import inside_a_domain
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.timing.issue_shape import IssueShape
from emulator.ultraserver.expert_phase import ExpertPhaseModel
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from emulator.ultraserver.step_time import without_host
from serving.analysis.steady_state.step_batches import same_on_all

DEEPEP_TOKENS, DEEPEP_CHOICES, DEEPEP_HIDDEN = 128, 8, 7_168
DEEPEP_BYTES: Final = {"dispatch": 1 + 4 / 128, "combine": 2.0}
BALANCED, EPLB = "balanced", "EPLB"
EPLB_RATIO: Final = 59_337 / 50_302
"""SGLang's own pair for prompts of 4,096: tokens/s with perfect balance over EPLB's. It gives the
busiest rank's lengthening of experts, also for SGLang's other rows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoint:
    """A deployment of `chips` GPUs, each with `requests` of `new` tokens over `context`.

    `traced`: its rate comes from a trace of the GPUs, which has none of an engine's own overheads.
    """

    key: str
    name: str
    system: str
    chips: int
    requests: int
    new_tokens: int
    context_tokens: int
    routing: str
    traced: bool = False
    conditions: str


def _prefill(
    key: str, name: str, system: str, isl: int, routing: str, *, traced: bool = False
) -> NodePoint:
    words = "experts balanced" if routing == BALANCED else "experts by EPLB, as SGLang's own pair"
    return NodePoint(
        key=key,
        name=name,
        system=system,
        chips=32,
        requests=16_384 // isl,
        new_tokens=isl,
        context_tokens=0,
        routing=routing,
        traced=traced,
        conditions=f"EP32, 16,384 tokens a GPU in prompts of {isl:,}; two-batch overlap; {words}",
    )


NODE_POINTS: Final = (
    _prefill(
        "ds-prof-prefill", "DeepSeek profile, prefill", "dgx-h800", 4_096, BALANCED, traced=True
    ),
    NodePoint(
        key="ds-prof-decode",
        name="DeepSeek profile, decode",
        system="dgx-h800",
        chips=128,
        requests=128,
        new_tokens=1,
        context_tokens=4_096,
        routing=BALANCED,
        traced=True,
        conditions="EP128, 128 sequences a GPU at 4,096; two-batch overlap; experts balanced",
    ),
    _prefill("sgl96-p1k", "SGLang on 96 H100, prefill 1k", "dgx-h100", 1_024, EPLB),
    _prefill("sgl96-p2k", "SGLang on 96 H100, prefill 2k", "dgx-h100", 2_048, EPLB),
    _prefill("sgl96-p4k", "SGLang on 96 H100, prefill 4k", "dgx-h100", 4_096, EPLB),
    NodePoint(
        key="sgl96-d2k",
        name="SGLang on 96 H100, decode 2k",
        system="dgx-h100",
        chips=72,
        requests=256,
        new_tokens=1,
        context_tokens=2_048 + 50,
        routing=EPLB,
        conditions="EP72, 256 sequences a GPU at 2,048 + 100; two-batch overlap; experts by EPLB",
    ),
)


def node_rates() -> dict[str, float]:
    """Tokens/s per GPU of every point, by its key."""
    costs = {point.key: _cost(point) for point in NODE_POINTS}
    pair = costs["sgl96-p4k"]
    excess_ns = (EPLB_RATIO - 1) * pair.duration_ns
    slower = 1 + excess_ns / pair.parts_ns["experts"]
    rates = {}
    for point in NODE_POINTS:
        cost = costs[point.key]
        longer = slower if point.routing == EPLB else 1.0
        step_ns = cost.duration_ns + (longer - 1) * cost.parts_ns["experts"]
        rates[point.key] = point.requests * point.new_tokens / step_ns * 1e9
    return rates


def _cost(point: NodePoint) -> StepCost:
    """One step of every rank alike, with attention data parallel and experts over all chips."""
    box = system_by_name(point.system)
    system = box.cluster(-(-point.chips // box.chips.count))
    calibration = calibration_for(box.chip.name)
    costs = StepCostModel(
        system,
        model_by_name("deepseek-v3"),
        Partition(chips=point.chips, tp=1, ep=point.chips, lnc=system.chip.default_lnc.count),
        calibration=without_host(calibration) if point.traced else calibration,
        overlap=Overlap.TWO_BATCH,
    )
    new, context = [point.new_tokens] * point.requests, [point.context_tokens] * point.requests
    return costs.cost(same_on_all(point.chips, new, context))


def deepep_us(ranks: int, what: str) -> float:
    """DeepEP's low-latency dispatch or combine over `ranks` H800s, under what ships."""
    return float(low_latency_us("dgx-h800", ranks, np.array([DEEPEP_TOKENS]), what)[0])


def low_latency_us(box: str, ranks: int, tokens: Float64s, what: str) -> Float64s:
    """Of even exchanges over `ranks` GPUs of some boxes, under what ships: [sizes].

    `tokens` [sizes] of each GPU, rows of DEEPEP_HIDDEN values, once to each of DEEPEP_CHOICES.
    """
    system = _boxes(box, ranks)
    group = np.arange(ranks, dtype=np.int64)[None]
    row_bytes = DEEPEP_CHOICES * DEEPEP_HIDDEN * DEEPEP_BYTES[what]
    time = CollectiveModel(system, group).time(Operation.ALL_TO_ALL, tokens * row_bytes)
    return _exchange_us(system, ranks, time.link_busy_ns, time.duration_ns - time.link_busy_ns)


def normal_us(box: str, ranks: int, tokens: Float64s, what: str) -> Float64s:
    """The same where a row goes once to each GPU that needs it, or to its box first: [sizes]."""
    system, model = _boxes(box, ranks), model_by_name("deepseek-v3")
    lnc = system.chip.default_lnc.count
    whole = Partition(chips=ranks, ep=ranks, lnc=lnc)
    layout = StepCostModel(system, model, whole).layout
    phase = ExpertPhaseModel(layout, IssueShape.of(model, system.chip, tp=1, cores=lnc))
    links = [phase.links(np.full(ranks, each)) for each in tokens.tolist()]
    link_ns, rest_ns = np.array([(link.max(), rest.max()) for link, rest, _ in links]).T
    share = phase.dispatch_share if what == "dispatch" else 1.0
    return _exchange_us(system, ranks, share * link_ns, rest_ns)


def _boxes(box: str, ranks: int) -> SystemSpec:
    system = system_by_name(box)
    return system.cluster(-(-ranks // system.chips.count))


def _exchange_us(system: SystemSpec, ranks: int, link_ns: Float64s, rest_ns: Float64s) -> Float64s:
    """Of an exchange's time of links and its hops: [sizes] all."""
    calibration = calibration_for(system.chip.name)
    if inside_a_domain(system, np.arange(ranks)[None]):
        calibration = calibration.inside_a_domain()
    taken_ns = link_ns / calibration.exchange_share.value + rest_ns
    microseconds: Float64s = (calibration.exchange_ns.value + taken_ns) / 1e3
    return microseconds
