"""`ultraserve serve`'s flags as its own parser reads them; the rest is in `unknown`."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from serving.commands import serve
from serving.commands.serve_arguments import resolve_arguments
from serving.settings import Settings


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    args, args.unknown = parser.parse_known_args(["serve", *arguments])
    return args


def resolved(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[Settings, Path]:
    """The flags' settings, with `environment` alone."""
    return resolve_arguments(parse(*arguments), environment or {})
