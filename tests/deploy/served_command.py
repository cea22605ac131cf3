"""A command of a deployment file, parsed as `ultraserve serve` does."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.access.secret import draw_secret, hash_of
from serving.commands.gateway_arguments import GatewayOptions, gateway_options
from serving.commands.serve_arguments import resolve_arguments
from serving.server.gateway.graceful_shutdown import _BOUND_WALL_S
from serving.settings import Settings
from tests.serving.commands.serve_flags import parse


def served(words: Sequence[str], values: Mapping[str, str] | None = None) -> argparse.Namespace:
    """The flags after `serve`, with `$(NAME)` expanded as by Kubernetes; asserts that all are
    known.
    """
    assert words[0] == "serve", words
    filled = [_filled(word, values or {}) for word in words[1:]]
    args = parse(*filled)
    assert args.unknown == [], f"flags that are not ours: {args.unknown}"
    return args


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"$({name})", value)
    assert "$(" not in word, f"nothing says what {word} is"
    return word


def settings_of(args: argparse.Namespace) -> Settings:
    """The machine's settings; raises ConfigError for refused ones."""
    settings, _ = resolve_arguments(args, {})
    return settings


def gateway_options_of(
    args: argparse.Namespace, keys: Path, environment: dict[str, str]
) -> GatewayOptions:
    """The gateway options, with the file `keys` where the command names one."""
    if args.key_file is not None:
        hashed = hash_of(draw_secret())
        keys.write_text(f'[[key]]\nname = "client"\nhash = "{hashed}"\n', encoding="utf-8")
        keys.chmod(0o600)
        args.key_file = keys
    return gateway_options(args, environment)


def end_wall_s_max(args: argparse.Namespace) -> float:
    """Most wall seconds from SIGTERM to the server's end."""
    return float(args.drain_wall_s_max) + _BOUND_WALL_S
