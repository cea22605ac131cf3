"""Options of a whole run, and the options of a run made from all that was typed."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadgen.commands.class_options import class_options
from loadgen.commands.option_values import (
    count,
    count_or_zero,
    duration_s,
    readable,
    seed,
    some_duration_s,
    target,
)
from loadgen.commands.traffic_class_spec import (
    TrafficClassSpec,
    class_values,
    given_classes,
)
from loadgen.durations import duration_words
from loadgen.runs.options import DEFAULT_TIMEOUT_S, RunOptions, ServerOptions

KEY_VARIABLE: Final = "ULTRASERVE_API_KEY"
"""Where the key is read from: a command line can be seen by other users, and is in the report."""

DEFAULT_URL: Final = "http://127.0.0.1:8000"
TOKENIZERS: Final = ("server", "words")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add who is asked."""
    group = parser.add_argument_group(
        "server", f"its key for this client is read from {KEY_VARIABLE}"
    )
    group.add_argument(
        "--url", default=DEFAULT_URL, help="server, with or without /v1 (default: %(default)s)"
    )
    group.add_argument(
        "--model",
        default=None,
        metavar="NAME",
        help="model (default: the first of the server's /v1/models)",
    )
    group.add_argument(
        "--grpc",
        dest="grpc_target",
        default=None,
        type=target,
        metavar="HOST:PORT",
        help="where --api grpc goes; --url is asked for all else",
    )
    group.add_argument(
        "--ca",
        default=None,
        type=Path,
        metavar="FILE",
        help="certificates to trust, PEM (default: the system's)",
    )
    group.add_argument(
        "--tokenizer",
        default="server",
        metavar="WHICH",
        help="what prompts are counted with: the server's /tokenize (server), a tokenizer.json or "
        "its folder (a path), or a word for a token (words) (default: %(default)s)",
    )
    group.add_argument(
        "--timeout",
        dest="timeout_s",
        type=some_duration_s,
        default=DEFAULT_TIMEOUT_S,
        metavar="TIME",
        help="wall time for a whole reply; beyond it a request has failed (default: "
        f"{duration_words(DEFAULT_TIMEOUT_S)})",
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what holds for every class."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help="of lengths, prompts and arrivals; the same seed sends the same, which a server that "
        "was sent it before may have in its prefix cache (default: %(default)s)",
    )
    group.add_argument(
        "--workers",
        type=count,
        default=1,
        metavar="N",
        help="processes that send, for more than one core; what is sent does not depend on it "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--warmup",
        type=count_or_zero,
        default=1,
        metavar="N",
        help="short requests sent before the measured window, one after another "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--skip",
        dest="skip_s",
        type=duration_s,
        default=0.0,
        metavar="TIME",
        help="send for so long before measuring (default: %(default)g)",
    )
    group.add_argument(
        "--recount",
        type=count_or_zero,
        default=32,
        metavar="N",
        help="replies of each class that are tokenised again and held against the server's usage "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--label", type=readable, default="", metavar="NAME", help="a name for this run in reports"
    )


def run_options(
    given: argparse.Namespace,
    *,
    parser: argparse.ArgumentParser,
    classes: Sequence[TrafficClassSpec] | None = None,
) -> RunOptions:
    """Make the options of a run of what was `given`, by default with its own classes.

    Raises LoadError.
    """
    values = vars(given)
    classes = given_classes(given) if classes is None else classes
    if classes:
        made = tuple(
            class_options(class_values(values, each, program=parser.prog), name=each.name)
            for each in classes
        )
    else:
        made = (class_options(values),)
    return RunOptions(
        server=_server(values),
        classes=made,
        results=values.get("results"),
        **{name: values[name] for name in ("seed", "workers", "warmup", "skip_s", "recount")},
        label=values["label"],
    )


def files_read(options: RunOptions) -> list[tuple[str, Path | None]]:
    """What a run reads, with the option that names it."""
    traces = [("--trace", each.workload.trace) for each in options.classes]
    return [("--ca", options.server.ca), ("--tokenizer", options.server.tokenizer), *traces]


def _server(values: Mapping[str, Any]) -> ServerOptions:
    tokenizer = values["tokenizer"]
    return ServerOptions(
        url=values["url"].rstrip("/").removesuffix("/v1"),
        model=values["model"],
        grpc_target=values["grpc_target"],
        ca=values["ca"],
        tokenizer=None if tokenizer in TOKENIZERS else Path(tokenizer),
        count_words=tokenizer == "words",
        timeout_s=values["timeout_s"],
    )
