"""The `ultraserve` command; its subcommands are thin modules of `serving.commands`.

A subcommand imports vLLM when it runs, so that `describe` does not pay for it.
"""

import argparse
import atexit
import contextlib
import os
import sys
import threading
from importlib import import_module
from io import TextIOWrapper
from typing import Final, NoReturn

from emulator.errors import UltraServeError
from loadgen.errors import LoadError
from serving.commands.renamed_flags import with_new_names
from startup.import_path import seal_import_path

_COMPLAINS: Final = "triton._C.libtriton"

_MODULES: Final = (
    *("serve", "key", "train", "demo", "state", "watch", "console", "top", "monitor", "ls"),
    *("fault", "leases", "daynight", "publish", "engine", "replicas", "profile"),
    *("describe", "collectives", "power", "simulate", "pareto", "plan", "compare", "day"),
    *("recipe", "fleet"),
    *("explain", "quality", "validate"),
)
"""Modules of `serving.commands`, in the order of the help."""


class OneLineErrors(argparse.ArgumentParser):
    """Its errors, and those of subcommands, are a line each, without the usage."""

    def error(self, message: str) -> NoReturn:
        """End the process as argparse does, with its exit code."""
        self.exit(UltraServeError.exit_code, f"{self.prog}: {message} (--help says more)\n")


class _Version(argparse.Action):
    """Read only when it is asked for: the readers of packages take as long as a small command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        parser.exit(message=f"ultraserve {version('ultraserve')}\n")


def command_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of every subcommand, or of `command` and those that its module has beside it.

    `run` of its result takes the parsed arguments, their `words` with them, returns an exit code,
    and raises UltraServeError for a wrong argument or a server that refuses or does not answer.
    """
    parser = OneLineErrors(
        prog="ultraserve",
        description="Run, load-test and plan LLM serving on emulated AWS Trn3 UltraServers.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _MODULES if command not in _MODULES else (command,):
        import_module(f"serving.commands.{name}").add_parser(subparsers)
    if command is not None and command not in subparsers.choices:
        return command_parser()
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, or that of the error that it prints.

    Without `argv` the process is this command's alone: only installed code is importable, and
    teardown messages of libraries are suppressed.
    """
    if argv is not None:
        return _run(argv)
    seal_import_path()
    code = _run(sys.argv[1:])
    if _COMPLAINS in sys.modules:
        end_process(code)
    return code


def end_process(code: int) -> NoReturn:
    """End this process as the interpreter does, without tearing down its modules.

    nanobind bindings still alive then (Triton's, imported by vLLM) list hundreds of functions on
    stderr, as if the server had failed.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.flush()
    os._exit(code)


def _run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):  # bars and boxes, where the locale has none: "?"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    parser = command_parser(arguments[0] if arguments else None)
    try:
        words = with_new_names(arguments)
        args, unknown = parser.parse_known_args(words)
        if unknown and not getattr(args, "passes_through", False):
            raise UltraServeError(f"unrecognized arguments: {' '.join(unknown)} (--help says more)")
        args.words, args.unknown = words, unknown
        return int(args.run(args))
    except (UltraServeError, LoadError) as error:
        print(f"ultraserve {arguments[0]}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, UltraServeError) else UltraServeError.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has had enough of it
        sys.stdout = None
        return 0


if __name__ == "__main__":
    sys.exit(main())
