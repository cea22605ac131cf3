"""The command `ultraserve-loadgen`: reports go to stdout, everything else to stderr.

A command is imported when named: charts and statistics take a second, and every sending process
(`--workers`) imports this file anew.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from loadgen.commands import exit_codes
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.standard_output import OutputClosed
from loadgen.errors import LoadError
from startup.import_path import seal_import_path

PROGRAM: Final = "ultraserve-loadgen"
COMMANDS: Final = {
    "run": "send a workload, measure, print a report",
    "sweep": "find the knee, and the highest load that keeps an SLO",
    "report": "print and write reports of what was measured before",
    "compare": "say which differences between runs are beyond noise",
}
"""Help text of each; the module of each is `loadgen.commands.NAME_command`."""
SEND: Final = ("run", "sweep")


_OLD_CLASSES: Final = (
    "warning: --class NAME OPTION ... goes with the next release; write --traffic-class "
    "'NAME KEY=VALUE ...', or --classes FILE"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's); returns the exit code."""
    if arguments is None:  # the process is this command's alone
        seal_import_path()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except LoadError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return exit_codes.WRONG_INPUT
    except OutputClosed:
        return exit_codes.READER_GONE
    except KeyboardInterrupt:  # while there is nothing to report
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return exit_codes.INTERRUPTED


def _run(words: Sequence[str]) -> int:
    for word in words:
        if any("\udc80" <= character <= "\udcff" for character in word):  # bytes, not text
            raise LoadError(f"{word!a}: expected UTF-8: the command is in every report")
    parser = OneLineParser(
        prog=PROGRAM,
        description="Put load on a server that speaks the OpenAI HTTP interface (or vLLM's gRPC "
        "one), and report.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    name = words[0] if words and words[0] in COMMANDS else ""
    for other, does in COMMANDS.items():
        if other != name:
            commands.add_parser(other, help=does)
    if not name:
        parser.parse_args(words)  # prints the help, or refuses
        parser.error("expected a command first")
    command = import_module(f"loadgen.commands.{name}_command")
    own = command.add(commands)
    if name in SEND:
        current = import_module("loadgen.workloads.traffic_class_spec").current_spelling(words)
        if current != words:
            print(f"{PROGRAM}: {_OLD_CLASSES}", file=sys.stderr)
        given = parser.parse_args(current)
        code: int = command.handle(given, parser=own, words=current)
    else:
        code = command.handle(parser.parse_args(words))
    return code
