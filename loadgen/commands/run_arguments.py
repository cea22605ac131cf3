"""Options of a whole run, and of each of its traffic classes."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.workloads.class_specs import arrival_spec, workload_spec
from loadgen.workloads.session_options import SessionOptions
from loadgen.workloads.traffic_class_spec import TrafficClassSpec, class_values, given_classes
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


KEY_VARIABLE: Final = "ULTRASERVE_API_KEY"
"""The variable with the key: other users can see a command line, and it is in the report."""

TOKENIZERS: Final = ("server", "words")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the server's options."""
    group = parser.add_argument_group(
        "server", f"its key for this client is read from {KEY_VARIABLE}"
    )
    add_options(group, ServerOptions)
    group.add_argument(
        "--tokenizer",
        default="server",
        metavar="WHICH",
        help="what prompts are counted with: the server's /tokenize (server), a tokenizer.json or "
        "its folder (a path), or a word for a token (words) (default: %(default)s)",
    )


def run_options(
    given: argparse.Namespace,
    *,
    parser: argparse.ArgumentParser,
    classes: Sequence[TrafficClassSpec] | None = None,
) -> RunOptions:
    """Make a run's options from `given`, and by default its classes; raises LoadError."""
    values = vars(given)
    classes = given_classes(given) if classes is None else classes
    if classes:
        made = tuple(
            class_options(
                class_values(values, each, program=parser.prog, add_options=add_class_arguments),
                name=each.name,
            )
            for each in classes
        )
    else:
        made = (class_options(values),)
    return RunOptions(server=_server(values), classes=made, **given_options(RunOptions, given))


def files_read(options: RunOptions) -> list[tuple[str, Path | None]]:
    """Files a run reads, with the option of each."""
    traces = [("--trace", each.workload.trace) for each in options.classes]
    return [("--ca", options.server.ca), ("--tokenizer", options.server.tokenizer), *traces]


def _server(values: Mapping[str, Any]) -> ServerOptions:
    tokenizer = values["tokenizer"]
    return ServerOptions(
        **given_options(ServerOptions, values)
        | {
            "url": values["url"].rstrip("/").removesuffix("/v1"),
            "tokenizer": None if tokenizer in TOKENIZERS else Path(tokenizer),
            "count_words": tokenizer == "words",
        }
    )
