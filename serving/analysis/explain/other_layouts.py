"""The same requests on the same chips in other partitions."""

from dataclasses import dataclass, replace

from emulator.errors import ConfigError
from emulator.specs.partition import Partition
from emulator.ultraserver.step_waterfall import WaterfallTerm
from serving.analysis.explain.step_question import StepQuestion
from serving.analysis.steady_state.partitions import (
    PartitionCandidate,
    PartitionFilter,
    candidate_partitions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLayout:
    """`engines` of `partition` on the question's chips, the fullest with `requests`."""

    engines: int
    partition: Partition
    requests: int
    step_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """What a layout changes.

    `parts_ns`: by part, its duration there less that here, the largest change first.
    """

    layout: OtherLayout
    parts_ns: dict[str, float]


def other_layouts(question: StepQuestion) -> tuple[OtherLayout, ...]:
    """Every partition into which the chips divide and whose KV holds the requests, fastest first.

    One engine, or several alike that share the requests evenly. The question's own is left out.
    """
    own = question.candidate.partition
    found = []
    for candidate in _candidates(question):
        partition = candidate.partition
        engines = question.chips // partition.chips
        requests = -(-question.requests // engines)
        load = question.load.shared(engines)
        if load is None or _shape(partition) == _shape(own):
            continue
        if load.rank_tokens(partition.ranks, requests) > candidate.kv_capacity_tokens:
            continue
        there = replace(question, candidate=candidate, load=load, requests=requests)
        step_ns = there.counted().cost_ns()
        found.append(
            OtherLayout(engines=engines, partition=partition, requests=requests, step_ns=step_ns)
        )
    return tuple(sorted(found, key=lambda each: (each.step_ns, _shape(each.partition))))


def _candidates(question: StepQuestion) -> tuple[PartitionCandidate, ...]:
    chips = question.chips
    sizes = tuple(size for size in range(1, chips + 1) if chips % size == 0)
    try:
        return candidate_partitions(
            question.system,
            question.model,
            asked=PartitionFilter(chips=sizes, across_units=question.system.units > 1),
            terms=question.terms,
            context_tokens=question.load.rank_tokens(1, 1),
        )
    except ConfigError:  # a declared step may lie on chips that hold no model
        return ()


def _shape(partition: Partition) -> tuple[object, ...]:
    sizes = (partition.chips, partition.tp, partition.ep, partition.expert_tp, partition.lnc)
    return (*sizes, partition.attention_split)


def layout_change(
    question: StepQuestion, layout: OtherLayout, terms: tuple[WaterfallTerm, ...]
) -> LayoutChange:
    """What `layout` changes in the waterfall `terms` of the question."""
    there = replace(
        question,
        candidate=next(
            each for each in _candidates(question) if each.partition == layout.partition
        ),
        load=question.load.shared(layout.engines) or question.load,
        requests=layout.requests,
    )
    here_ns = by_part(terms)
    there_ns = by_part(there.counted().waterfall())
    changes = {
        part: there_ns.get(part, 0.0) - here_ns.get(part, 0.0)
        for part in dict.fromkeys((*here_ns, *there_ns))
    }
    ordered = sorted(changes.items(), key=lambda each: -abs(each[1]))
    return LayoutChange(layout=layout, parts_ns=dict(ordered))


def by_part(terms: tuple[WaterfallTerm, ...]) -> dict[str, float]:
    """Durations of a waterfall's parts, in order of appearance."""
    parts: dict[str, float] = {}
    for term in terms:
        parts[term.part] = parts.get(term.part, 0.0) + term.ns
    return parts
