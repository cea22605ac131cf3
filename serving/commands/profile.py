"""`ultraserve profile`: a run's timeline for Perfetto, and what the run says in sums.

Without `--model` it records a running server for a while; with it, traffic is simulated in virtual
time. Results go to stdout, what is going on to stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from emulator.specs.overlap import Overlap
from reporting.data_forms import json_text
from serving.commands.calibration_argument import add_calibration_argument
from serving.commands.control_connection import add_connection_arguments
from serving.commands.reading_argument import add_reading_argument
from serving.settings import Settings

if TYPE_CHECKING:
    from emulator.ultraserver.ceilings import Ceilings
    from serving.analysis.profile.profiled_run import ProfiledRun

_VIRTUAL_ONLY: Final = (
    *("system", "chips", "tp", "ep", "lnc", "routing", "rate", "requests"),
    *("prompt_tokens", "output_tokens", "spread", "seed", "max_num_seqs"),
    *("max_num_batched_tokens", "prefill_policy", "overlap", "calibration", "reading"),
)
_LIVE_ONLY: Final = ("seconds", "emulated_seconds")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `profile` command."""
    parser = subparsers.add_parser(
        "profile",
        help="write a run's timeline for Perfetto, and print utilisation and bottlenecks",
        description="Record a running server, or simulate traffic with --model; write the timeline "
        "as Chrome trace JSON, which ui.perfetto.dev opens, and print what each engine did, MFU, "
        "MBU, each phase's bottleneck and what would relieve it.",
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
        "--steps",
        type=int,
        metavar="N",
        help="keep at most so many steps, the last ones (default: 4,000)",
    )
    add_connection_arguments(parser)
    live = parser.add_argument_group("a running server")
    length = live.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=float, metavar="S", help="record for so many wall seconds (default: 10)"
    )
    length.add_argument(
        "--emulated-seconds", type=float, metavar="S", help="record for so many emulated seconds"
    )
    _add_virtual(parser)
    parser.set_defaults(run=run)


def _add_virtual(parser: argparse.ArgumentParser) -> None:
    """The arguments of a simulation; none has a default here, so that what was given is known."""
    group = parser.add_argument_group("traffic in virtual time")
    group.add_argument("--model", help="a catalog name: simulate instead of recording a server")
    group.add_argument("--system", help=f"machine (default: {Settings().system})")
    for name, words in (
        ("chips", "chips of the partition (default: 4)"),
        ("tp", "chips of a rank (default: 1)"),
        ("ep", "chips that share the experts (default: all)"),
        ("lnc", "physical NeuronCores of a logical one (default: the chip's)"),
        ("requests", "requests to serve (default: 200)"),
        ("prompt-tokens", "median prompt (default: 1,024)"),
        ("output-tokens", "median reply (default: 128)"),
        ("seed", "of arrivals and lengths (default: 0)"),
        ("max-num-seqs", "requests at once on a rank (default: 64)"),
        ("max-num-batched-tokens", "tokens of a rank in a step (default: 8,192)"),
    ):
        group.add_argument(f"--{name}", type=int, metavar="N", help=words)
    group.add_argument(
        "--rate", type=float, metavar="R", help="requests per second, Poisson (default: 10)"
    )
    group.add_argument(
        "--spread",
        type=float,
        metavar="SIGMA",
        help="of both lengths, lognormal; 0 for fixed ones (default: 0.5)",
    )
    group.add_argument("--routing", metavar="HOW", help="uniform or zipf:S (default: uniform)")
    group.add_argument("--prefill-policy", metavar="POLICY", help="as of `ultraserve serve`")
    group.add_argument(
        "--overlap", choices=tuple(Overlap), help="how far communication hides (default: none)"
    )
    add_calibration_argument(group, default=None)
    add_reading_argument(group, default=None)


def run(args: argparse.Namespace) -> int:
    """Profile, write the trace and print the sums; returns the exit code.

    Raises:
        UltraServeError: a wrong argument, a server that does not answer, a file that cannot be.
    """
    _refuse_what_is_not_used(args)
    if not args.out.absolute().parent.is_dir():  # said before the run, not after it
        raise ConfigError(field="out", value=args.out, expected="a path in a folder that exists")
    if args.model is None:
        from serving.commands.profile_server import profile_server as profile
    else:
        from serving.commands.profile_virtual import profile_virtual as profile
    run, ceilings = profile(args)
    return report(run, ceilings, args.out, as_json=args.json)


def _refuse_what_is_not_used(args: argparse.Namespace) -> None:
    """An argument of the other source would silently do nothing."""
    names = _VIRTUAL_ONLY if args.model is None else _LIVE_ONLY
    expected = (
        "nothing without --model: a running server has its own"
        if args.model is None
        else "nothing with --model: a simulation ends with its requests"
    )
    for name in names:
        value = getattr(args, name)
        if value is not None:
            raise ConfigError(field=name.replace("_", "-"), value=value, expected=expected)


def report(run: ProfiledRun, ceilings: Ceilings, out: Path, *, as_json: bool) -> int:
    """Write the trace and print the sums; 1 and one line when no step ran."""
    from serving.analysis.profile.chrome_trace import write_trace
    from serving.analysis.profile.profile_summary import summarize
    from serving.commands.profile_text import summary_lines

    if run.dropped:
        print(
            f"the first {run.dropped:,} steps are not in it: --steps keeps {len(run.steps):,}",
            file=sys.stderr,
        )
    if not run.steps:
        window_s = (run.end_ns - run.begin_ns) / 1e9
        print(f"no step ran in {window_s:.3f} emulated seconds: no trace", file=sys.stderr)
        return 1
    size = write_trace(run, out)
    print(f"{out}: {len(run.steps):,} steps, {size / 1e6:,.1f} MB", file=sys.stderr)
    summary = summarize(run, ceilings)
    print(json_text(summary) if as_json else "\n".join(summary_lines(summary)))
    return 0
