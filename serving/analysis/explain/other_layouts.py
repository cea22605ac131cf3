"""The same requests on the same chips in other partitions."""

from dataclasses import dataclass, replace

from emulator.errors import ConfigError
from emulator.specs.partition import Partition, divisors
from emulator.ultraserver.step_waterfall import WaterfallTerm
from serving.analysis.explain.step_question import StepQuestion
from serving.analysis.steady_state.partitions import (
    PartitionCandidate,
    PartitionFilter,
    candidate_partitions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLayout:
    """`engines` on the question's chips, the fullest as `question`, whose step takes `step_ns`."""

    engines: int
    question: StepQuestion
    step_ns: float

    @property
    def partition(self) -> Partition:
        """Of each engine."""
        return self.question.candidate.partition

    @property
    def requests(self) -> int:
        """That the fullest engine decodes."""
        return self.question.requests


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
        found.append(OtherLayout(engines=engines, question=there, step_ns=step_ns))
    return tuple(sorted(found, key=lambda each: (each.step_ns, _shape(each.partition))))


def _candidates(question: StepQuestion) -> tuple[PartitionCandidate, ...]:
    chips = question.chips
    sizes = tuple(divisors(chips))
    try:
        return candidate_partitions(
            question.system,
            question.model,
            asked=PartitionFilter(chips=sizes, across_units=question.across_units),
            terms=question.terms,
            context_tokens=question.load.rank_tokens(1, 1),
        )
    except ConfigError:  # a declared step may lie on chips that hold no model
        return ()


def _shape(partition: Partition) -> tuple[object, ...]:
    sizes = (partition.chips, partition.tp, partition.ep, partition.expert_tp, partition.lnc)
    return (*sizes, partition.attention_split)


def changes_ns(layout: OtherLayout, terms: tuple[WaterfallTerm, ...]) -> dict[str, float]:
    """By part, its duration in `layout` less that in `terms`, the largest change first."""
    here_ns = by_part(terms)
    there_ns = by_part(layout.question.counted().waterfall())
    changes = {
        part: there_ns.get(part, 0.0) - here_ns.get(part, 0.0)
        for part in dict.fromkeys((*here_ns, *there_ns))
    }
    return dict(sorted(changes.items(), key=lambda each: -abs(each[1])))


def by_part(terms: tuple[WaterfallTerm, ...]) -> dict[str, float]:
    """Durations of a waterfall's parts, in order of appearance."""
    parts: dict[str, float] = {}
    for term in terms:
        parts[term.part] = parts.get(term.part, 0.0) + term.ns
    return parts
