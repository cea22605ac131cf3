"""Options that every traffic class may have of its own: what arrives, when, and how it is asked.

They have no defaults here: an option that was not given is not there, so that a class's own can be
laid over what all classes share (`loadgen.commands.traffic_class_spec`).
"""

import argparse
from pathlib import Path
from typing import Final, get_args

from loadgen.arrivals.arrival_spec import Gaps
from loadgen.arrivals.make_pacer import CONCURRENCY_FORMS
from loadgen.arrivals.rate_shape import RATE_FORMS
from loadgen.commands.option_values import (
    above_zero,
    count,
    duration_s,
    fan_out,
    header,
    json_object,
    long_context,
    not_negative,
    shared_prefix,
    some_duration_s,
    window_s,
)
from loadgen.measures.slo import Slo
from loadgen.records.run_record import Api, PromptKind
from loadgen.runs.options import History
from loadgen.workloads.output_schema import read_output_schema
from loadgen.workloads.workload_spec import TraceFormat

LENGTHS: Final = "LENGTHS"


def add_class_arguments(parser: argparse.ArgumentParser, *, loads: bool = True) -> None:
    """Add them in their groups; with `loads` False, without --rate, --concurrency and --speedup."""
    _add_workload(parser.add_argument_group("workload"))
    _add_sessions(
        parser.add_argument_group(
            "sessions", "what is laid over lengths, recorded or drawn; a session is what arrives"
        )
    )
    _add_arrivals(
        parser.add_argument_group(
            "arrivals",
            "without --rate or --concurrency a trace is sent at its own times;\n"
            "times are the server's (emulated, if it keeps such a clock), but for --wall-time",
        ),
        loads=loads,
    )
    _add_asking(parser.add_argument_group("requests"))


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="recorded workload: Azure 2023 CSV, Mooncake JSONL, ShareGPT JSON, BurstGPT CSV "
        "(default: a synthetic one in the Azure format that comes with this tool)",
    )
    group.add_argument(
        "--trace-format",
        choices=get_args(TraceFormat),
        help="format of --trace (default: auto, by its content)",
    )
    group.add_argument(
        "--window",
        dest="window_s",
        type=window_s,
        metavar="FROM-TO",
        help="only what the trace recorded from one time to another, as in 10m-70m",
    )
    group.add_argument(
        "--input",
        metavar=LENGTHS,
        help="draw the prompts' tokens, instead of or over a trace's: 512, uniform:64-1024, "
        "lognormal:MEAN,DEVIATION[,MIN-MAX] or histogram:FILE.csv (rows of length,weight)",
    )
    group.add_argument("--output", metavar=LENGTHS, help="the replies' tokens, written likewise")
    group.add_argument(
        "--requests",
        "--sessions",
        dest="sessions",
        type=count,
        metavar="N",
        help="send N sessions: the first N rows of a trace (default: all), or so many as are drawn",
    )
    group.add_argument(
        "--max-input-tokens", type=count, metavar="N", help="cut longer prompts to N tokens"
    )
    group.add_argument(
        "--max-output-tokens", type=count, metavar="N", help="cut longer replies to N tokens"
    )


def _add_sessions(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shared-prefix",
        type=shared_prefix,
        metavar="TOKENS[xGROUPS]",
        help="begin each prompt with one of GROUPS system prompts of TOKENS tokens (default: x1)",
    )
    group.add_argument(
        "--turns", metavar=LENGTHS, help="turns of a conversation, as lengths are written: 4"
    )
    group.add_argument(
        "--think",
        dest="think_s",
        type=duration_s,
        metavar="TIME",
        help="time between a reply and the session's next request, in the time that --rate is in "
        "(default: 0)",
    )
    group.add_argument(
        "--history",
        choices=get_args(History),
        help="what stands for earlier replies in a later turn: what was planned, the same in "
        "every run, or what the server said (default: planned)",
    )
    group.add_argument(
        "--fan-out",
        type=fan_out,
        metavar="WIDTH[xDEPTH]",
        help="an agent: a plan, WIDTH calls at once that share its context, a join; DEPTH times",
    )
    group.add_argument(
        "--long-context",
        type=long_context,
        metavar="SHARE:TOKENS",
        help="give a share of the sessions a prompt of so many tokens: 5%%:32000",
    )
    group.add_argument(
        "--schema",
        dest="output_schema",
        type=lambda text: read_output_schema(Path(text)),
        metavar="FILE",
        help="structured output: replies have to keep to the JSON schema in FILE",
    )


def _add_arrivals(group: argparse._ArgumentGroup, *, loads: bool) -> None:
    if loads:
        loop = group.add_mutually_exclusive_group()
        loop.add_argument("--rate", metavar="R", help=f"sessions per second: {RATE_FORMS}")
        loop.add_argument(
            "--concurrency",
            metavar="N",
            help=f"closed loop, so many sessions in flight: {CONCURRENCY_FORMS}",
        )
        group.add_argument(
            "--speedup",
            type=above_zero,
            metavar="X",
            help="send at the recorded times, X times as fast (default: 1)",
        )
    group.add_argument(
        "--arrivals",
        dest="gaps",
        choices=get_args(Gaps),
        help="gaps at a rate: exponential, even, or gamma distributed (default: poisson)",
    )
    group.add_argument(
        "--burstiness",
        type=above_zero,
        metavar="K",
        help="shape of the gamma gaps: their CV is 1 / sqrt(K); below 1 burstier than Poisson",
    )
    group.add_argument(
        "--duration",
        dest="duration_s",
        type=some_duration_s,
        metavar="TIME",
        help="begin no session after TIME (default: when the workload is at its end)",
    )
    group.add_argument(
        "--start",
        dest="start_s",
        type=duration_s,
        metavar="TIME",
        help="begin so long after the run's start (default: 0)",
    )
    group.add_argument(
        "--wall-time",
        action="store_true",
        default=argparse.SUPPRESS,
        help="rates and times are in wall seconds, whatever the server's clock",
    )
    group.add_argument(
        "--max-in-flight",
        type=count,
        metavar="N",
        help="most requests under way at once; more wait, and are counted "
        "(default: 512, or the concurrency if that is more)",
    )


def _add_asking(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api",
        choices=get_args(Api),
        help="/v1/completions, /v1/chat/completions, or vllm.grpc.engine.VllmEngine "
        "(default: completions)",
    )
    group.add_argument(
        "--prompts",
        choices=get_args(PromptKind),
        help="token ids, or text that the tokenizer counts as many tokens "
        "(default: token-ids; text with --api chat)",
    )
    group.add_argument(
        "--temperature", type=not_negative, metavar="T", help="of sampling (default: 0, greedy)"
    )
    group.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        default=argparse.SUPPRESS,
        help="let replies end early; for servers that refuse ignore_eos",
    )
    group.add_argument(
        "--header",
        dest="headers",
        type=header,
        action="append",
        metavar="NAME:VALUE",
        help="send this header with every request; may be given again; NAME:@VARIABLE reads the "
        "value from the environment, as a secret should be (a bearer token: ULTRASERVE_API_KEY)",
    )
    group.add_argument(
        "--extra-body",
        type=json_object,
        metavar="JSON",
        help="an object, or @FILE with one, whose members are laid over every request's body",
    )
    group.add_argument(
        "--slo",
        type=Slo.parse,
        metavar="BOUNDS",
        help="service level, as in ttft=200ms,tpot=20ms@p99: goodput is what keeps every bound",
    )
