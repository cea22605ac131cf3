"""The traffic of `ultraserve simulate`, in the load generator's words.

The load generator's own options, parser and plan say what is sent and when. One seed sends what
`ultraserve-loadgen run` sends with the same words.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.rate_shape import parse_rate
from loadgen.errors import OptionError
from loadgen.workloads.drawn_defaults import INPUT, OUTPUT, REQUESTS, SEED
from loadgen.workloads.session_options import SessionOptions
from loadgen.workloads.traffic_class_spec import (
    add_traffic_class_arguments,
    class_values,
    given_classes,
)
from loadgen.workloads.workload_spec import WorkloadSpec
from serving.commands.analysis_options import check_least, say
from startup.typed_options import add_options, option

if TYPE_CHECKING:
    from loadgen.measures.slo import Slo
    from loadgen.records.arrays import Int64s
    from loadgen.records.run_record import AskedArrivals, ClassHeader
    from loadgen.workloads.class_draft import ClassDraft
    from loadgen.workloads.planned_traffic import ClassTraffic
    from loadgen.workloads.traffic import Traffic
    from serving.simulator import Run

_KINDS: Final = (
    (WorkloadSpec, ()),
    (SessionOptions, ()),
    (ArrivalSpec, ()),
)
_REFUSED: Final = (
    ("output_schema", "--schema", "no schema: how long a reply is that keeps to it, tokens decide"),
    ("wall_time", "--wall-time", "emulated times alone: a simulation takes no wall time"),
    ("max_in_flight", "--max-in-flight", "a --concurrency, or no limit: it is of a client's host"),
)
"""What the load generator does and virtual time cannot: no token is computed, no client is there.
"""


@dataclass(frozen=True, kw_only=True)
class SimulatedTargetOptions:
    """The target of a class, or of all."""

    GROUP = "traffic"

    slo: str | None = option(
        None,
        "a target, such as ttft=500ms,tpot=30ms@p99: the share that keeps it",
        metavar="TARGET",
    )


@dataclass(frozen=True, kw_only=True)
class SimulatedTrafficOptions(SimulatedTargetOptions):
    """What the traffic is drawn and counted with."""

    GROUP = SimulatedTargetOptions.GROUP

    seed: int = option(SEED, "of arrivals and lengths")
    tokenizer: str | None = option(
        None,
        "what counts recorded conversations: a tokenizer.json, its folder, or words",
        metavar="WHICH",
    )

    def __post_init__(self) -> None:
        check_least("seed", self.seed, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedClass:
    """A class of the traffic: its name, itself in words, its target, and what was left out."""

    name: str
    workload: str
    arrivals: AskedArrivals
    slo: Slo | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedTraffic:
    """The requests, the class of each, [requests], and the classes."""

    traffic: Traffic
    of_class: Int64s
    classes: tuple[SimulatedClass, ...]

    def of_run(self, found: Run) -> SimulatedTraffic:
        """The part of it that was sent."""
        return replace(self, traffic=found.served.traffic, of_class=self.of_class[found.sent])

    def headers(self) -> tuple[ClassHeader, ...]:
        """The classes as the load generator records them."""
        from loadgen.records.run_record import ClassHeader

        sessions = self.traffic.sessions
        begins = np.ones(len(self.traffic)) if sessions is None else sessions.after < 0
        sums = [
            np.bincount(self.of_class, each, minlength=len(self.classes)).astype(np.int64).tolist()
            for each in (None, begins, self.traffic.prompt_tokens, self.traffic.output_tokens)
        ]
        return tuple(
            ClassHeader(
                name=each.name,
                api=None,
                workload=each.workload,
                prompts="",
                arrivals=each.arrivals,
                sessions=begun,
                requests=requests,
                slo="" if each.slo is None else each.slo.words,
                notes=each.notes,
                input_tokens=prompts,
                output_tokens=replies,
            )
            for each, requests, begun, prompts, replies in zip(self.classes, *sums, strict=True)
        )


def add_traffic_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of workload, sessions, arrivals and classes, which have no defaults."""
    _add_class_arguments(parser)
    add_traffic_class_arguments(parser, own="workload, lengths, sessions and arrivals, and --slo")


def _add_class_arguments(parser: argparse.ArgumentParser) -> None:
    for kind, without in _KINDS:
        add_options(parser, kind, without=without, defaults=None)


def _add_own_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that a class may have of its own."""
    _add_class_arguments(parser)
    add_options(parser, SimulatedTargetOptions, defaults=None)


def simulated_traffic(
    args: argparse.Namespace, options: SimulatedTrafficOptions, *, context_tokens: int
) -> SimulatedTraffic:
    """Plan every class and merge them; what is longer than the context is left out, and said so.

    Raises LoadError, ConfigError.
    """
    from loadgen.workloads.class_draft import class_seeds
    from loadgen.workloads.traffic import Traffic
    from serving.traffic.slo import parse_slo

    common = vars(args)
    each_values = {
        each.name: class_values(
            common, each, program="ultraserve simulate", add_options=_add_own_arguments
        )
        for each in given_classes(args)
    } or {"default": common}
    if len(each_values) < len(given_classes(args)):
        names = [each.name for each in given_classes(args)]
        raise OptionError("--traffic-class", names, "names that differ")
    classes, parts = [], []
    for (name, values), seed in zip(
        each_values.items(), class_seeds(options.seed, len(each_values)), strict=True
    ):
        made = _planned(values, seed=seed, tokenizer=options.tokenizer)
        for note in made.notes:
            say(f"ultraserve simulate: {note}")
        slo = None if values.get("slo") is None else parse_slo(values["slo"])
        classes.append(
            SimulatedClass(
                name=name,
                workload=made.workload,
                arrivals=made.arrivals,
                slo=slo,
                notes=made.notes,
            )
        )
        parts.append(_within(made.traffic, context_tokens))
    traffic, of_class = Traffic.merged(parts)
    return SimulatedTraffic(traffic=traffic, of_class=of_class, classes=tuple(classes))


def _planned(values: Mapping[str, Any], *, seed: int, tokenizer: str | None) -> ClassTraffic:
    from loadgen.workloads.class_draft import draft_class
    from loadgen.workloads.class_specs import arrival_spec, workload_spec
    from loadgen.workloads.planned_traffic import class_traffic

    for name, words, expected in _REFUSED:
        if values.get(name) not in (None, False):
            raise OptionError(words, "given", expected=expected)
    values = _with_defaults(values)
    draft = draft_class(workload_spec(values), arrival_spec(values), seed=seed)
    return class_traffic(_counted(draft, tokenizer))


def _with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lengths and a number of requests where nothing says them; a source must be said."""
    rate, concurrency = values.get("rate"), values.get("concurrency")
    if "trace" in values:
        return dict(values)
    if rate is None and concurrency is None:
        raise OptionError("--rate", None, "a rate, a --concurrency or a --trace")
    ends = "duration_s" in values or (rate is not None and parse_rate(rate).end_s is not None)
    requests = {} if ends else {"sessions": REQUESTS}
    return {"input": INPUT, "output": OUTPUT, **requests, **values}


def _counted(draft: ClassDraft, tokenizer: str | None) -> ClassDraft:
    """With the tokens of recorded texts, if it has any."""
    if not draft.texts:
        return draft
    if tokenizer is None:
        expected = "a tokenizer.json, its folder or words: the trace has texts and no lengths"
        raise OptionError("--tokenizer", None, expected)
    import asyncio
    from pathlib import Path

    from loadgen.tokenizers.local_tokenizer import LocalTokenizer
    from loadgen.tokenizers.word_tokenizer import WordTokenizer

    counter = WordTokenizer() if tokenizer == "words" else LocalTokenizer(Path(tokenizer))
    return draft.counted([len(ids) for ids in asyncio.run(counter.encode(draft.texts))])


def _within(traffic: Traffic, context_tokens: int) -> Traffic:
    """Without what a server would refuse; whole where nothing would be left."""
    within = traffic.within_context(context_tokens)
    if not len(within):
        return traffic
    if len(within) < len(traffic):
        dropped = len(traffic) - len(within)
        say(f"ultraserve simulate: {dropped:,} requests longer than the context left out")
    return within
