"""Sessions of `ultraserve plan` and `compare`, in the load generator's words."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from loadgen.workloads.class_specs import workload_spec
from loadgen.workloads.drawn_defaults import INPUT, OUTPUT
from loadgen.workloads.session_options import SessionOptions
from loadgen.workloads.workload_spec import WorkloadSpec
from startup.typed_options import add_options, flag_of

if TYPE_CHECKING:
    from loadgen.measures.slo import Slo
    from serving.analysis.plan.session_demand import SessionDemand

_LENGTHS: Final = ("input", "output")
_OF_WORKLOAD: Final = ("think_s", "history", "fan_out", "max_input_tokens")
_OF_SESSIONS: Final = ("shared_prefix", "turns", "long_context", *_OF_WORKLOAD)
_NOT_BESIDE: Final = {
    "trace": "--trace",
    "lengths": "--lengths",
    "classes": "--traffic-class",
    "class_file": "--classes",
}


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of sessions, which have no defaults."""
    add_options(parser, SessionOptions, without=_LENGTHS, defaults=None)
    others = {each.name for each in fields(WorkloadSpec)}.difference(_OF_WORKLOAD)
    add_options(parser, WorkloadSpec, without=others, defaults=None)


def sessions_given(args: argparse.Namespace) -> bool:
    """Whether requests come in sessions."""
    return any(name in vars(args) for name in _OF_SESSIONS)


def planned_sessions(
    args: argparse.Namespace,
    *,
    rate_per_s: float | None,
    slo: Slo,
    context_tokens: int,
    seed: int,
    caches: bool,
) -> SessionDemand:
    """Those of the arguments; raises ConfigError, LoadError."""
    from serving.analysis.plan.session_demand import LatestReply, SessionDemand

    values = vars(args)
    first = next(name for name in _OF_SESSIONS if name in values)
    for name, flag in _NOT_BESIDE.items():
        if values.get(name):
            expected = f"nothing beside {flag}: sessions are drawn, and come at a --rate"
            raise ConfigError(flag_of(first).removeprefix("--"), values[first], expected)
    if rate_per_s is None:
        raise ConfigError("rate", "", "sessions per second")
    return SessionDemand(
        sessions_per_s=rate_per_s,
        workload=workload_spec(_values(values, _OF_SESSIONS)),
        latest=LatestReply.within(slo),
        context_tokens=context_tokens,
        caches=caches,
        lengths_seed=seed,
    )


def _values(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    lengths = {"input": values.get("input") or INPUT, "output": values.get("output") or OUTPUT}
    return {name: values[name] for name in names if name in values} | lengths
