"""Makes a class's options from the values typed for it."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.runs.options import ClassOptions
from loadgen.workloads.class_specs import arrival_spec, workload_spec
from loadgen.workloads.session_options import SessionOptions
from loadgen.workloads.workload_spec import WorkloadSpec
from startup.typed_options import add_options, given_options

LOADS: Final = ("rate", "concurrency", "speedup")


def add_class_arguments(parser: argparse.ArgumentParser, *, loads: bool = True) -> None:
    """Add the groups; with `loads` False, without --rate, --concurrency and --speedup."""
    for kind in (WorkloadSpec, SessionOptions, ArrivalSpec, ClassOptions):
        add_options(parser, kind, without=() if loads else LOADS, defaults=None)


DEFAULT_CLASS: Final = "default"


def class_options(values: Mapping[str, Any], *, name: str = DEFAULT_CLASS) -> ClassOptions:
    """Check the values of one class and fill in defaults; raises OptionError."""
    given = given_options(ClassOptions, values)
    if given.get("api") == "chat":
        given = {"prompts": "text", **given}
    if "headers" in given:
        given["headers"] = dict(given["headers"])
    parts = {"name": name, "workload": workload_spec(values), "arrivals": arrival_spec(values)}
    return ClassOptions(**given | parts)
