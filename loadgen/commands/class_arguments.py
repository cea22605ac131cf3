"""Options that each traffic class may have of its own: workload, arrivals, requests."""

import argparse
from typing import Final

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.runs.options import ClassOptions
from loadgen.workloads.session_options import SessionOptions
from loadgen.workloads.workload_spec import WorkloadSpec
from startup.typed_options import add_options

LOADS: Final = ("rate", "concurrency", "speedup")


def add_class_arguments(parser: argparse.ArgumentParser, *, loads: bool = True) -> None:
    """Add the groups; with `loads` False, without --rate, --concurrency and --speedup."""
    for kind in (WorkloadSpec, SessionOptions, ArrivalSpec, ClassOptions):
        add_options(parser, kind, without=() if loads else LOADS, defaults=None)
