"""The command line of `ultraserve-loadgen`: the words of its options, their units and defaults."""

import argparse
import math
from pathlib import Path
from typing import Final, NoReturn

from loadgen.errors import LoadError
from loadgen.measure import DEFINITIONS
from loadgen.options import RunOptions
from loadgen.sample_trace import BUNDLED_TRACE

KEY_VARIABLE: Final = "ULTRASERVE_API_KEY"
"""Where the key is read from: a command line can be seen by other users, and is in the report."""

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_MAX_IN_FLIGHT: Final = 512
DEFAULT_TIMEOUT_S: Final = 1_800.0  # wall: a dilated server takes its time
EXAMPLES: Final = """\
examples:
  ultraserve-loadgen run --requests 100 --rate 4
  ultraserve-loadgen run --trace AzureLLMInferenceTrace_conv.csv --speedup 2 --json report.json
  ultraserve-loadgen run --concurrency 16 --max-input-tokens 512 --results results.jsonl"""


class _OneLineParser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage: a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise LoadError(f"{message} ({self.prog} --help says more)")


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command; its parse_args raises LoadError for wrong input."""
    parser = _OneLineParser(
        prog="ultraserve-loadgen",
        description="Put load on a server that speaks the OpenAI HTTP interface, and report.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="send a workload, measure, print a report",
        description="Send a workload to /v1/completions, streaming, and report what came back.",
        epilog=f"{DEFINITIONS}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_server(
        run.add_argument_group("server", f"its key for this client is read from {KEY_VARIABLE}")
    )
    _add_workload(run.add_argument_group("workload"))
    _add_arrivals(
        run.add_argument_group("arrivals", "without --rate or --concurrency: the trace's own times")
    )
    _add_output(run.add_argument_group("output"))
    return parser


def parse_options(arguments: argparse.Namespace) -> RunOptions:
    """Turn the parsed `run` command into options; raises OptionError."""
    values = vars(arguments).copy()
    del values["command"]
    values["url"] = values["url"].rstrip("/").removesuffix("/v1")
    if values["max_in_flight"] is None:
        values["max_in_flight"] = max(DEFAULT_MAX_IN_FLIGHT, values["concurrency"] or 0)
    return RunOptions(**values)


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--url", default=DEFAULT_URL, help="server, with or without /v1 (default: %(default)s)"
    )
    group.add_argument(
        "--model", metavar="NAME", help="model (default: the first of the server's /v1/models)"
    )
    group.add_argument(
        "--timeout",
        dest="timeout_s",
        type=_above_zero,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="wall seconds for a whole reply; beyond it a request has failed (default: 1800)",
    )
    group.add_argument(
        "--temperature",
        type=_not_negative,
        default=0.0,
        metavar="T",
        help="sampling temperature (default: 0, greedy)",
    )
    group.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="let replies end early; for servers that refuse ignore_eos",
    )


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        type=Path,
        default=BUNDLED_TRACE,
        metavar="FILE",
        help="recorded workload in the Azure 2023 CSV format: TIMESTAMP,ContextTokens,"
        "GeneratedTokens (default: the synthetic one that comes with this tool)",
    )
    group.add_argument(
        "--requests", type=_count, metavar="N", help="send the first N rows (default: all)"
    )
    group.add_argument(
        "--max-input-tokens", type=_count, metavar="N", help="cut longer prompts to N tokens"
    )
    group.add_argument(
        "--max-output-tokens", type=_count, metavar="N", help="cut longer replies to N tokens"
    )
    group.add_argument(
        "--prompts",
        choices=("token-ids", "text"),
        default="token-ids",
        help="token ids of exact number, made with the server's /tokenize, or as many words "
        "of text (default: %(default)s)",
    )
    group.add_argument(
        "--warmup",
        type=_count_or_zero,
        default=1,
        metavar="N",
        help="short requests sent before the measured window, one after another (default: 1)",
    )
    group.add_argument(
        "--seed",
        type=_count_or_zero,
        default=0,
        metavar="N",
        help="of prompts and arrivals; the same seed sends the same (default: 0)",
    )


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    loop = group.add_mutually_exclusive_group()
    loop.add_argument(
        "--rate",
        dest="rate_per_s",
        type=_above_zero,
        metavar="R",
        help="requests per second of the server's time (emulated, if it keeps that)",
    )
    loop.add_argument(
        "--concurrency",
        type=_count,
        metavar="N",
        help="closed loop: keep N requests in flight",
    )
    group.add_argument(
        "--arrivals",
        choices=("poisson", "constant"),
        default="poisson",
        help="gaps at --rate: drawn (exponential), or even (default: %(default)s)",
    )
    group.add_argument(
        "--speedup",
        type=_above_zero,
        default=1.0,
        metavar="X",
        help="send at the recorded times, X times as fast (default: 1)",
    )
    group.add_argument(
        "--wall-time",
        action="store_true",
        help="--rate and recorded times are in wall seconds, whatever the server's clock",
    )
    group.add_argument(
        "--max-in-flight",
        type=_count,
        metavar="N",
        help=f"most requests under way at once; more wait, and are counted "
        f"(default: {DEFAULT_MAX_IN_FLIGHT}, or --concurrency if that is more)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    group.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="write a JSON line per request as it ends; times in wall ns since the start",
    )
    group.add_argument("--quiet", action="store_true", help="show no progress")


def _count(text: str) -> int:
    return _whole(text, least=1)


def _count_or_zero(text: str) -> int:
    return _whole(text, least=0)


def _whole(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, not {text!r}")
    return int(text)


def _above_zero(text: str) -> float:
    value = _not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, not {text!r}")
    return value
