"""`ultraserve serve --front smg`: the front's program, and what a server with one does not have."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from serving.commands.gateway_arguments import GatewayOptions
from serving.process.front_program import FrontProgram, find_front

if TYPE_CHECKING:
    from serving.engine.deployment import Deployment


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
    served = _served_names(args.unknown) or [deployment.time_model.name]
    if served[0].startswith(("/", "~")) or ".." in Path(served[0]).parts:
        expected = "a name that is no path elsewhere, with --front"
        raise ConfigError("served_model_name", served[0], expected)
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
            keys=gateway.keys,
            tls=None if tls is None else (tls.certificate, tls.key),
            requests_max=seats * deployment.settings.ranks + settings.limits.queue_requests,
            body_bytes_max=settings.body_bytes_max,
            request_wall_s_max=settings.request_wall_s_max,
            drain_wall_s_max=settings.drain_wall_s_max,
        )

    return program


def _served_names(vllm_arguments: list[str]) -> list[str]:
    """Those of vLLM's own flag."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--served-model-name", "--served_model_name", nargs="+", default=[])
    names: list[str] = parser.parse_known_args(vllm_arguments)[0].served_model_name
    return names
