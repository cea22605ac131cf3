"""`ultraserve serve --front smg`: the front's program, and what a server with one does not have."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.gateway_arguments import GatewayOptions
from serving.process.front_program import FrontProgram, find_front

if TYPE_CHECKING:
    from serving.engine.deployment import Deployment

_NOT_ACROSS: Final = ("tool-call-parser", "reasoning-parser", "generation-config")
"""vLLM's flags that change answers in its app, which the front's are not made by."""


def resolve_front(
    args: argparse.Namespace, gateway: GatewayOptions, deployment: "Deployment", *, seats: int
) -> Callable[[Path], FrontProgram] | None:
    """What makes the front of `deployment` in a directory; None without one.

    It holds as many requests at a time as `seats` of all ranks and the gateway's queue do. Raises
    ConfigError where smg is not installed, or what it cannot do is asked of the server.
    """
    if args.front is None:
        return None
    settings = gateway.settings
    tls, engine = settings.tls, deployment.settings.engine
    refused = (
        ("engine", None if engine == "fast" else engine, "fast with --front"),
        ("replicas", args.replicas, "none with --front, which is of one engine"),
        ("day_night", args.day_night, "none with --front, whose load it does not see"),
        ("api_keys", settings.key_file, "--api-key with --front: the file has hashes of keys"),
        ("tls_client_ca", tls and tls.client_ca, "none with --front, which has no such check"),
    )
    for field, value, expected in refused:
        if value is not None:
            raise ConfigError(field, value, expected)
    if settings.api_server_count > 1:
        expected = "1 with --front, which takes the requests instead"
        raise ConfigError("api_server_count", settings.api_server_count, expected)
    flags = _vllm_flags(args.unknown)
    served = _served_names(flags.served_model_name, deployment.time_model.name)
    template = _path("chat_template", flags.chat_template, Path.is_file, "a file")
    tokenizer = _path("tokenizer", flags.tokenizer, Path.exists, "a folder or file")
    python = find_front(os.environ)

    def program(directory: Path) -> FrontProgram:
        return FrontProgram(
            python=python,
            host=args.host,
            port=args.front_port,
            metrics_port=args.front_metrics_port,
            model=deployment.weights_dir,
            served=served,
            directory=directory,
            chat_template=template,
            tokenizer=tokenizer,
            keys=gateway.keys,
            tls=None if tls is None else (tls.certificate, tls.key),
            requests_max=seats * deployment.settings.ranks + settings.limits.queue_requests,
            body_bytes_max=settings.body_bytes_max,
            request_wall_s_max=settings.request_wall_s_max,
            drain_wall_s_max=settings.drain_wall_s_max,
        )

    return program


def _vllm_flags(arguments: list[str]) -> argparse.Namespace:
    """Those of vLLM that a front must know; raises ConfigError for what it cannot have."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--served-model-name", "--served_model_name", nargs="*")
    for name in ("chat-template", "tokenizer", *_NOT_ACROSS):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", nargs="?", const="")
    flags = parser.parse_known_args(arguments)[0]
    for name in _NOT_ACROSS:
        field = name.replace("-", "_")
        if (value := getattr(flags, field)) is not None:
            raise ConfigError(field, value, "none with --front, which reads answers by itself")
    return flags


def _served_names(names: list[str] | None, model: str) -> list[str]:
    """The names by which clients know the model; the first is a path below a directory."""
    if names is None:
        return [model]
    if not names or not all(names):
        raise ConfigError("served_model_name", "", "at least one name, and none empty")
    parts = Path(names[0]).parts
    if not parts or ".." in parts or names[0].startswith(("/", "~")):
        expected = "a name that is no path elsewhere, with --front"
        raise ConfigError("served_model_name", names[0], expected)
    return names


def _path(
    field: str, value: str | None, is_there: Callable[[Path], bool], kind: str
) -> Path | None:
    if value is None:
        return None
    if not value or not is_there(Path(value)):
        raise ConfigError(field, value, f"{kind} on this machine, with --front")
    return Path(value)
