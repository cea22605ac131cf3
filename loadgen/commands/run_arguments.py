"""Options of a whole run."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadgen.commands.class_options import add_class_arguments, class_options
from loadgen.runs.options import RunOptions, ServerOptions
from loadgen.workloads.traffic_class_spec import TrafficClassSpec, class_values, given_classes
from startup.typed_options import add_options, given_options

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
