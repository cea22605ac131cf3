"""Options that each traffic class may have of its own: workload, arrivals, requests.

They have no defaults, so that a class's own values can be laid over the shared ones
(`loadgen.commands.traffic_class_spec`).
"""

import argparse
from dataclasses import dataclass
from typing import Final

from loadgen import option_values
from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.runs.options import ClassOptions
from loadgen.workloads.workload_spec import WorkloadSpec
from startup.typed_options import add_options, option

LENGTHS: Final = "LENGTHS"
LOADS: Final = ("rate", "concurrency", "speedup")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options typed in another form than a workload has them."""

    GROUP = "sessions: what is laid over lengths, recorded or drawn; a session is what arrives"

    input: str | None = option(
        None,
        "draw the prompts' tokens, instead of or over a trace's: 512, uniform:64-1024, "
        "lognormal:MEAN,DEVIATION[,MIN-MAX] or histogram:FILE.csv (rows of length,weight)",
        metavar=LENGTHS,
    )
    output: str | None = option(None, "the replies' tokens, written likewise", metavar=LENGTHS)
    shared_prefix: tuple[int, int] | None = option(
        None,
        "begin each prompt with one of GROUPS system prompts of TOKENS tokens (default: x1)",
        type=option_values.count_times_count,
        metavar="TOKENS[xGROUPS]",
    )
    turns: str | None = option(
        None, "turns of a conversation, as lengths are written: 4", metavar=LENGTHS
    )
    long_context: tuple[float, int] | None = option(
        None,
        "give a share of the sessions a prompt of so many tokens: 5%:32000",
        type=option_values.long_context,
        metavar="SHARE:TOKENS",
    )


def add_class_arguments(parser: argparse.ArgumentParser, *, loads: bool = True) -> None:
    """Add the groups; with `loads` False, without --rate, --concurrency and --speedup."""
    for kind in (WorkloadSpec, SessionOptions, ArrivalSpec, ClassOptions):
        add_options(parser, kind, without=() if loads else LOADS, defaults=None)
