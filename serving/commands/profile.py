"""`ultraserve profile`: a run's timeline for Perfetto, and its sums.

Records a running server, or simulates traffic with `--model`. Results go to stdout, progress to
stderr.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from loadgen.workloads.drawn_defaults import REQUESTS, SEED
from loadgen.workloads.session_options import LengthOptions
from reporting.data_forms import json_text
from serving.commands.analysis_options import check_folder, one_of, say
from serving.commands.control_connection import add_connection_arguments
from serving.commands.drawn_lengths import drawn_lengths
from serving.settings import PartitionOptions
from serving.traffic.draft_options import DRAFT_LIMITS
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import add_options, given_options, option, read_options

if TYPE_CHECKING:
    from emulator.ultraserver.ceilings import Ceilings
    from loadgen.workloads.traffic import Traffic
    from serving.analysis.profile.profiled_run import ProfiledRun


@dataclass(frozen=True, kw_only=True)
class VirtualOptions(LengthOptions, PartitionOptions):
    """Traffic in virtual time and its engine."""

    GROUP = "traffic in virtual time"

    model: str | None = option(
        None, "a catalog name: simulate instead of recording a server", metavar="NAME"
    )
    rate: float = option(10.0, "requests per second, Poisson", metavar="R")
    requests: int = option(REQUESTS, "requests to serve")
    seed: int = option(SEED, "of arrivals and lengths")


def profile_virtual(args: argparse.Namespace) -> tuple[ProfiledRun, Ceilings]:
    """Simulate; raises ConfigError or HbmExhausted."""
    from emulator.specs.assumptions import with_assumptions
    from emulator.specs.models import model_by_name
    from emulator.specs.overlap import Overlap
    from emulator.specs.shipped_fits import calibration_for
    from emulator.specs.systems import system_by_name
    from emulator.timing.expert_distribution import ExpertDistribution
    from serving.analysis.profile.profile_traffic import profile_traffic
    from serving.analysis.steady_state.step_assumptions import StepAssumptions
    from serving.engine.step_recording import STEPS_DEFAULT

    options = read_options(VirtualOptions, args)
    assert options.model is not None
    system = with_assumptions(system_by_name(options.system), options.assumptions)
    for changed in system.turned_in_words():
        say(changed)
    model = model_by_name(options.model)
    return profile_traffic(
        _traffic(options),
        system,
        model,
        options.partition(system),
        distribution=ExpertDistribution.parse(options.routing or "uniform", model, seed=0),
        limits=read_options(SchedulerLimits, args),
        steps_max=STEPS_DEFAULT if args.keep_steps is None else args.keep_steps,
        assumed=StepAssumptions(
            overlap=one_of(Overlap, "overlap", options.overlap),
            calibration=calibration_for(system.chip.name, name=options.calibration),
        ),
    )


def _traffic(options: VirtualOptions) -> Traffic:
    from loadgen.workloads.traffic import Traffic

    return Traffic.drawn(
        rate_per_s=options.rate,
        lengths=drawn_lengths(options),
        seed=options.seed,
        requests=options.requests,
    )


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """Length of a running server's recording."""

    GROUP = "a running server"

    seconds: float | None = option(
        None, "record for so many wall seconds (default: 10)", metavar="S", one_of="length"
    )
    emulated_seconds: float | None = option(
        None, "record for so many emulated seconds", metavar="S", one_of="length"
    )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `profile` command."""
    parser = subparsers.add_parser(
        "profile",
        help="write a run's timeline for Perfetto, and print utilisation and bottlenecks",
        description="Record a running server, or simulate traffic with --model; write the timeline "
        "as Chrome trace JSON, which ui.perfetto.dev opens, and print what each engine did, MFU, "
        "MBU, each phase's bottleneck and its duration if one resource were faster.",
        epilog="Exit codes: 0 done; 1 no step ran, so there is nothing to show; 2 a wrong "
        "argument, or a server that does not answer.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("trace.json"),
        metavar="FILE",
        help="the trace; gzipped when the name ends in .gz (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-steps",
        type=int,
        metavar="N",
        help="keep at most so many steps, the last ones (default: 4,000)",
    )
    add_connection_arguments(parser)
    add_options(parser, LiveOptions)
    add_options(parser, VirtualOptions, defaults=None)
    add_options(parser, SchedulerLimits, without=DRAFT_LIMITS, defaults=None)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Profile and report; returns the exit code.

    Raises UltraServeError: a wrong argument, no answer of the server, a file not written.
    """
    virtual = given_options(VirtualOptions, args) | given_options(SchedulerLimits, args)
    live = {name: value for name, value in given_options(LiveOptions, args).items() if value}
    is_live = "model" not in virtual
    for name, value in (virtual if is_live else live).items():  # refuse what would be ignored
        expected = (
            "nothing without --model: a running server has its own"
            if is_live
            else "nothing with --model: a simulation ends with its requests"
        )
        raise ConfigError(name.replace("_", "-"), value, expected)
    check_folder("out", args.out)
    if is_live:
        from serving.commands.profile_server import profile_server as profile
    else:
        profile = profile_virtual
    run, ceilings = profile(args)
    return report(run, ceilings, args.out, as_json=args.json)


def report(run: ProfiledRun, ceilings: Ceilings, out: Path, *, as_json: bool) -> int:
    """Write the trace and print the sums; returns 1 when no step ran."""
    from serving.analysis.profile.chrome_trace import write_trace
    from serving.analysis.profile.profile_summary import summarize
    from serving.commands.profile_text import summary_lines

    if run.dropped:
        say(f"the first {run.dropped:,} steps are not in it: --keep-steps keeps {len(run.steps):,}")
    if not run.steps:
        window_s = (run.end_ns - run.begin_ns) / 1e9
        say(f"no step ran in {window_s:.3f} emulated seconds: no trace")
        return 1
    size = write_trace(run, out)
    say(f"{out}: {len(run.steps):,} steps, {size / 1e6:,.1f} MB")
    summary = summarize(run, ceilings)
    print(json_text(summary) if as_json else "\n".join(summary_lines(summary)))
    return 0
