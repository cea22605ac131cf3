"""The `ultraserve` command: one thin file per subcommand in `serving.commands`.

Commands are imported when they are run, so that `describe` does not pay for vLLM.
"""

import argparse
import sys
from importlib import import_module

from emulator.errors import UltraServeError

_COMMANDS = ("serve", "describe", "demo")


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0, or 2 after one line that says what is wrong."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="ultraserve",
        description="Run, load-test and plan LLM serving on emulated AWS Trn3 UltraServers.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        import_module(f"serving.commands.{name}").add_parser(subparsers)
    args, unknown = parser.parse_known_args(arguments)
    if unknown and not getattr(args, "passes_through", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.unknown = unknown
    try:
        return int(args.run(args))
    except UltraServeError as error:
        print(f"ultraserve {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
