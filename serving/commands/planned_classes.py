"""Traffic classes of `ultraserve plan`, in the load generator's words.

A class has a rate, lengths, a target and a priority; what it lacks the command line's own options
say. Sessions, traces and closed loops are simulated, not planned.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from loadgen.workloads.session_options import LengthOptions
from loadgen.workloads.traffic_class_spec import class_values, given_classes
from serving.commands.drawn_lengths import drawn_lengths
from startup.typed_options import add_options, given_options, option

if TYPE_CHECKING:
    from serving.analysis.plan.class_demand import PlannedClass

CLASS_KEYS: Final = "rate, input, output, slo, priority"
_NOT_BESIDE: Final = ("trace", "lengths")


@dataclass(frozen=True, kw_only=True)
class PlannedClassOptions(LengthOptions):
    """What a class may have of its own."""

    rate: float | None = option(None, "requests per second, Poisson")
    slo: str | None = option(None, "its target")
    priority: int = option(0, "the lowest is the most urgent")


def planned_classes(args: argparse.Namespace, shared: object) -> list[PlannedClass]:
    """The given classes, `shared` options as their defaults; none where none is given.

    Raises UltraServeError, LoadError.
    """
    given = given_classes(args) if hasattr(args, "classes") else []
    if not given:
        return []
    for name in _NOT_BESIDE:
        if getattr(shared, name) is not None:
            raise ConfigError(name, getattr(shared, name), "nothing beside traffic classes")
    names = [each.name for each in given]
    if len(set(names)) < len(names):
        raise ConfigError("traffic-class", ", ".join(names), "names that differ")
    common = {name: getattr(shared, name) for name in ("rate", "slo", "input", "output")}
    return [
        _planned(
            each.name,
            class_values(common, each, program="ultraserve plan", add_options=_add_options),
        )
        for each in given
    ]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, PlannedClassOptions, defaults=None)


def _planned(name: str, values: Mapping[str, Any]) -> PlannedClass:
    from serving.analysis.plan.class_demand import PlannedClass
    from serving.traffic.slo import parse_slo

    own = PlannedClassOptions(**given_options(PlannedClassOptions, values))
    if own.rate is None:
        raise ConfigError(f"{name}: rate", "", "requests per second, its own or --rate")
    if own.slo is None:
        raise ConfigError(f"{name}: slo", "", "a target, its own or --slo")
    lengths = drawn_lengths(own)
    return PlannedClass(
        name=name,
        rate_per_s=own.rate,
        lengths=lengths,
        words=f"prompts of {lengths.prompt.words} tokens, replies of {lengths.output.words}",
        slo=parse_slo(own.slo),
        priority=own.priority,
    )
