"""The command `ultraserve-loadgen`: reports go to stdout, everything else to stderr.

Exit codes: 0; 1 when a request failed; 2 for wrong input or a server that cannot be asked; 130
after Ctrl-C.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from loadgen.commands import compare_command, exit_codes, report_command, run_command, sweep_command
from loadgen.commands.class_words import split_classes
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.run_arguments import KEY_VARIABLE
from loadgen.errors import LoadError

PROGRAM: Final = "ultraserve-loadgen"
_OF_LOAD: Final = {run_command.NAME: run_command.handle, sweep_command.NAME: sweep_command.handle}
_OF_FILES: Final = {
    report_command.NAME: report_command.handle,
    compare_command.NAME: compare_command.handle,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's); returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except LoadError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return exit_codes.WRONG_INPUT
    except KeyboardInterrupt:  # while there is nothing to report
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return exit_codes.INTERRUPTED


def _run(words: Sequence[str]) -> int:
    parser = OneLineParser(
        prog=PROGRAM,
        description="Put load on a server that speaks the OpenAI HTTP interface (or vLLM's gRPC "
        "one), and report.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        module.NAME: module.add(commands)
        for module in (run_command, sweep_command, report_command, compare_command)
    }
    of_load = bool(words) and words[0] in _OF_LOAD
    common, classes = split_classes(words) if of_load else (list(words), [])
    given = parser.parse_args(common)
    name: str = given.command
    if name in _OF_FILES:
        return _OF_FILES[name](given)
    return _OF_LOAD[name](
        given,
        classes,
        parser=parsers[name],
        command=shlex.join([PROGRAM, *words]),
        key=os.environ.get(KEY_VARIABLE, ""),
    )
