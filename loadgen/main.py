"""The command `ultraserve-loadgen`: the report goes to stdout, everything else to stderr.

Exit codes: 0; 1 when a request failed; 2 for wrong input or a server that cannot be asked; 130
after Ctrl-C.
"""

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from loadgen.arguments import KEY_VARIABLE, make_parser, parse_options
from loadgen.errors import LoadError
from loadgen.run import EXIT_INTERRUPTED, run

PROGRAM: Final = "ultraserve-loadgen"
EXIT_WRONG_INPUT: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's); returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse_options(make_parser().parse_args(words))
        key = os.environ.get(KEY_VARIABLE, "")
        return asyncio.run(run(options, shlex.join([PROGRAM, *words]), key=key))
    except LoadError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:  # while there is nothing to report
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
