"""Traffic of several classes on the same replicas: rates, lengths, and a target for each.

Arrivals of each class are Poisson and independent: so are those of all together, of which each is
of a class at random, by the classes' rates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final, Self

import numpy as np

from emulator.arrays import Bools
from emulator.errors import ConfigError
from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Bound, Slo
from loadgen.records.arrays import Int64s
from loadgen.workloads.length_pairs import LengthPairs
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.plan_demand import PlanDemand, RateDemand

LIMITS_LONG: Final = 20
"""Times the loosest limit of TTFT that a long run lasts: a queue that grows by a twentieth of the
time is then too long at its end.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBound(Bound):
    """A bound that requests of one class have to keep; `number` is the class's place."""

    traffic_class: str
    number: int

    def __str__(self) -> str:
        return f"{self.traffic_class} {Bound.__str__(self)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedClass:
    """A class; `words` say its lengths. The lowest priority is the most urgent.

    Raises ConfigError for a rate that is not above 0.
    """

    name: str
    rate_per_s: float
    lengths: LengthPairs
    words: str
    slo: Slo
    priority: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < float("inf"):
            raise ConfigError(f"{self.name}: rate", self.rate_per_s, "above 0")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassesDemand(RateDemand):
    """Independent arrivals of several classes.

    Raises ConfigError as `RateDemand`, and where no request of a class fits the context.
    """

    classes: tuple[PlannedClass, ...]

    @classmethod
    def of(cls, classes: Sequence[PlannedClass], *, context_tokens: int, seed: int) -> Self:
        """At the classes' own rates."""
        rate_per_s = sum(each.rate_per_s for each in classes)
        made = cls(
            rate_per_s=rate_per_s,
            lengths=classes[0].lengths,
            context_tokens=context_tokens,
            lengths_in_words="",
            lengths_seed=seed,
            classes=tuple(classes),
        )
        words = [
            f"{each.name} {100 * share:.3g} %, {each.words}"
            + (f", priority {each.priority}" if made.has_priorities else "")
            for each, share in zip(classes, made.shares_of_classes, strict=True)
        ]
        for number, each in enumerate(classes):
            if not (made.peak_of_class == number).any():
                expected = f"some within the context of {context_tokens:,} tokens"
                raise ConfigError(f"{each.name}: lengths", each.words, expected)
        return replace(made, lengths_in_words="; ".join(words))

    @property
    def shares_of_classes(self) -> tuple[float, ...]:
        """Of each class in the requests."""
        every = sum(each.rate_per_s for each in self.classes)
        return tuple(each.rate_per_s / every for each in self.classes)

    @property
    def has_priorities(self) -> bool:
        """Whether some classes go before others."""
        return len({each.priority for each in self.classes}) > 1

    @property
    def slo(self) -> Slo:
        """The bounds of all classes."""
        return Slo(
            bounds=tuple(
                ClassBound(
                    measure=bound.measure,
                    limit=bound.limit,
                    percentile=bound.percentile,
                    traffic_class=each.name,
                    number=number,
                )
                for number, each in enumerate(self.classes)
                for bound in each.slo.bounds
            ),
            words="; ".join(f"{each.name} {each.slo.words}" for each in self.classes),
        )

    @property
    def peak_of_class(self) -> Int64s:
        """The class of each request of `peak`, [requests]."""
        of_class = self._sampled()[1]
        assert of_class is not None
        return of_class

    def _drawn(self, rate_per_s: float, requests: int, seed: int) -> tuple[Traffic, Int64s]:
        arrivals = Traffic.drawn(
            rate_per_s=rate_per_s, lengths=self.lengths, seed=seed, requests=requests
        )
        chance = np.random.default_rng([seed, 3])
        of_class = chance.choice(len(self.classes), size=requests, p=self.shares_of_classes)
        tokens = np.empty((2, requests), dtype=np.int64)  # [prompt and output, requests]
        for number, each in enumerate(self.classes):
            own = of_class == number
            lengths_chance = np.random.default_rng([seed, 4, number])
            tokens[:, own] = each.lengths.draw_pairs(lengths_chance, int(own.sum()))
        traffic = replace(
            arrivals,
            prompt_tokens=tokens[0],
            output_tokens=tokens[1],
            priority=np.array([each.priority for each in self.classes])[of_class],
        )
        fits = tokens.sum(axis=0) <= self.context_tokens
        return traffic.chosen(fits), of_class[fits]


def steady_target(demand: PlanDemand, slo: Slo) -> tuple[Slo, Bools]:
    """The target by which the steady state proposes, and the requests of the peak whose long prompt
    is held against its TTFT, [requests].

    Of classes, which share all steps, the tightest TPOT, and the TTFT of the class whose long
    prompt has the least time by the token: what cannot keep these cannot keep all.
    """
    prompts = demand.peak.prompt_tokens
    those = np.full(len(prompts), True)
    if not isinstance(demand, ClassesDemand):
        return slo, those
    tpots = [bound for bound in slo.bounds if bound.name == "tpot"]
    bounds = [min(tpots, key=lambda bound: bound.limit)] if tpots else []
    of_class, most_per_ms = demand.peak_of_class, 0.0
    ttft: ClassBound | None = None
    for bound in slo.bounds:
        assert isinstance(bound, ClassBound)
        own = of_class == bound.number
        tokens_per_ms = percentile(prompts[own], bound.percentile) / bound.limit
        if bound.name == "ttft" and tokens_per_ms > most_per_ms:
            most_per_ms, those, ttft = tokens_per_ms, own, bound
    if ttft is not None:
        bounds.append(ttft)
    return Slo(bounds=tuple(bounds), words=slo.words), those


def long_run(demand: PlanDemand, slo: Slo, requests_per_s: float) -> int:
    """Requests that a long run of a replica has to judge at least; of classes, whose queues have
    long to grow where one may wait much longer than another.
    """
    if not isinstance(demand, ClassesDemand):
        return 1
    limits_s = [bound.limit_s for bound in slo.bounds if bound.name == "ttft"]
    return ceil(LIMITS_LONG * requests_per_s * max(limits_s, default=0.0))


def levels_of_all(demand: PlanDemand, slo: Slo) -> tuple[Bound, ...]:
    """Bounds that all requests keep together where the target is kept: of classes the loosest limit
    of each measure that all of them bound, by as many requests as have to keep any.
    """
    if not isinstance(demand, ClassesDemand):
        return slo.bounds
    levels = []
    for name in ("ttft", "tpot"):
        own = [bound for bound in slo.bounds if bound.name == name]  # in the order of classes
        if len(own) == len(demand.classes):
            kept = zip(own, demand.shares_of_classes, strict=True)
            together = sum(bound.percentile * share for bound, share in kept)
            limit = max(bound.limit for bound in own)
            levels.append(Bound(measure=own[0].measure, limit=limit, percentile=together))
    return tuple(levels)


def measure_of(traffic_class: str, name: str) -> str:
    """As `ttft`, or `chat ttft` of a class."""
    return f"{traffic_class} {name}".lstrip()


def measure_words(measure: str) -> str:
    """For a reader: `TTFT`, or `chat TTFT`."""
    traffic_class, _, name = measure.rpartition(" ")
    return f"{traffic_class} {name.upper()}".lstrip()


def class_assumptions(demand: PlanDemand) -> Iterator[str]:
    """What a plan takes for granted of classes."""
    if isinstance(demand, ClassesDemand):
        yield (
            "requests of all classes go to the same replicas, at random; each class is judged by "
            "its own requests"
        )
        if demand.has_priorities:
            yield "requests of the lowest priority go first: vLLM's --scheduling-policy priority"


def class_data(demand: PlanDemand) -> list[dict[str, Any]]:
    """The classes in base units, for JSON; none without."""
    if not isinstance(demand, ClassesDemand):
        return []
    return [
        {
            "name": each.name,
            "share": share,
            "requests_per_s": share * demand.rate_per_s,
            "priority": each.priority,
            "slo": each.slo.words,
        }
        for each, share in zip(demand.classes, demand.shares_of_classes, strict=True)
    ]
