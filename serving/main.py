"""The `ultraserve` command: one thin file per subcommand in `serving.commands`.

A subcommand imports vLLM only when it runs it, so that `describe` does not pay for that.
"""

import argparse
import sys
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper

from emulator.errors import UltraServeError
from emulator.import_path import seal_import_path

_COMMANDS = (
    "serve",
    "key",
    "train",
    "demo",
    "state",
    "watch",
    "console",
    "top",
    "monitor",
    "ls",
    "fault",
    "drain",
    "lend",
    "resume",
    "daynight",
    "publish",
    "rollback",
    "engine",
    "profile",
    "describe",
    "collectives",
    "power",
    "pareto",
    "plan",
    "day",
    "validate",
)


def command_parser() -> argparse.ArgumentParser:
    """The parser of every subcommand; `run` of what it reads is the subcommand's function."""
    parser = argparse.ArgumentParser(
        prog="ultraserve",
        description="Run, load-test and plan LLM serving on emulated AWS Trn3 UltraServers.",
    )
    parser.add_argument(
        "--version", action="version", version=f"ultraserve {version('ultraserve')}"
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        import_module(f"serving.commands.{name}").add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0, or that of the error, which it prints."""
    for stream in (sys.stdout, sys.stderr):  # bars and boxes, where the locale has none: "?"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if argv is None:  # the process is this command's alone
        seal_import_path()
    arguments = sys.argv[1:] if argv is None else argv
    parser = command_parser()
    args, unknown = parser.parse_known_args(arguments)
    if unknown and not getattr(args, "passes_through", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.unknown = unknown
    try:
        return int(args.run(args))
    except UltraServeError as error:
        print(f"ultraserve {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has had enough of it
        sys.stdout = None
        return 0


if __name__ == "__main__":
    sys.exit(main())
