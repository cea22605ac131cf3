"""vLLM's own OpenAI server, started in this process with our platform's settings.

The bundled weights, nearly noise, write white space for ever where a grammar allows it. By default
their guided JSON has none, and `named` and `required` tools have JSON's grammar: vLLM's grammar of
tags ignores `disable_any_whitespace`.

Flags that `ultraserve serve` reads itself are refused where vLLM's own parser finds them: it
accepts prefixes, dots and underscores in them, and flags from its `--config` YAML file.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from emulator.data import BUNDLED_WEIGHTS
from emulator.errors import ConfigError
from serving.engine.deployment import Deployment
from serving.errors import RefusedByVllm, UnsupportedFlag
from serving.plugin.model_parsers import parser_arguments
from serving.process.api_processes import ApiProcesses
from serving.process.front_program import ENVIRONMENT as FRONT
from serving.process.front_program import REQUESTS_VARIABLE as FRONT_REQUESTS
from serving.process.front_program import FrontProgram
from serving.process.parent_death_watchdog import cleared_by_engine, sockets_prefix
from serving.process.server_shutdown import ServerShutdown, server_shutdown
from serving.process.start_signals import end_imports_on_signals, end_start_on_signals

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Longer than clients and gateways keep an idle connection (aiohttp 15 s, nginx 60 s): the side
    # that gives it up first must be theirs, or a request meets the closing and fails for nothing.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
    # Grammars that were compiled are kept in so many MiB; vLLM's 512 are what one client can fill.
    "VLLM_XGRAMMAR_CACHE_MB": "64",
    # Spans that wait to be sent; the SDK's 2,048 drop some where 600 requests end in one step. Four
    # spans each of 4,096 requests, at an assumed 4 kB a span 64 MB.
    "OTEL_BSP_MAX_QUEUE_SIZE": "16384",
}

_SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
"""Of the spans' resource; users may set `service.name` in OTEL_RESOURCE_ATTRIBUTES instead."""

_TOOLS_AS_JSON: Final = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}
"""vLLM's own switch of the grammar of tags."""

_STRUCTURED: Final = "--structured-outputs-config"
_COMPACT_JSON: Final = {"backend": "xgrammar", "disable_any_whitespace": True}
_CONFIG_FILE: Final = "--config"


def serve(
    deployment: Deployment,
    *,
    host: str,
    port: int,
    vllm_arguments: list[str],
    given_arguments: list[str],
    api_processes: int = 1,
    front: Callable[[Path], FrontProgram] | None = None,
) -> int:
    """Run `vllm serve` on `deployment` until it is stopped; returns its exit code.

    `vllm_arguments` follow ours, so that a user's spelling wins; `given_arguments` are a user's.
    `api_processes` serve HTTP, of which this is the first. `front` makes one in a directory.

    Raises:
        UltraServeError: this platform, or vLLM's configuration, refuses an argument.
    """
    environment = _ENVIRONMENT
    if _is_noise(deployment):
        environment = environment | _TOOLS_AS_JSON
        vllm_arguments = [*_compact_json(vllm_arguments), *vllm_arguments]
    model = deployment.time_model.name
    parsers = parser_arguments(model, deployment.weights_dir, vllm_arguments)
    vllm_arguments = [*parsers, *vllm_arguments]
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        environment = environment | {_SERVICE_NAME: "ultraserve"}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    # vLLM reads its command line itself, in this process and in those it spawns.
    sys.argv = ["vllm", *vllm_command(deployment, host, port), *vllm_arguments]
    end_imports_on_signals()
    import vllm.entrypoints.cli.serve  # noqa: F401  what `main` imports, and takes seconds
    from vllm.entrypoints.cli.main import main

    end_start_on_signals()
    refuse_disallowed_flags(given_arguments)
    with (
        tempfile.TemporaryDirectory(prefix=sockets_prefix(os.getpid())) as sockets,
        cleared_by_engine(Path(sockets)),
    ):
        os.environ["VLLM_RPC_BASE_PATH"] = sockets
        if front is not None:
            directory = Path(sockets) / "front"
            directory.mkdir(mode=0o700)
            with _before(front(directory)):
                return _run(main)
        if api_processes == 1:
            return _run(main)
        with _several(ApiProcesses(count=api_processes, directory=Path(sockets))):
            return _run(main)


@contextlib.contextmanager
def _several(processes: ApiProcesses) -> Iterator[None]:
    """Have the server that runs meanwhile start the other API processes."""
    import prometheus_client.values

    from serving.plugin.api_workers import several_api_processes

    os.environ |= processes.to_environment()
    # Families add up over processes by files, whose directory prometheus_client asks for at import.
    processes.metrics.mkdir()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(processes.metrics)
    values: Any = prometheus_client.values
    values.ValueClass = values.get_value_class()
    with several_api_processes(processes):
        yield


@contextlib.contextmanager
def _before(program: FrontProgram) -> Iterator[None]:
    """Have the server that runs meanwhile behind a front."""
    from serving.plugin.native_front import with_front

    os.environ[FRONT] = str(os.getpid())
    os.environ[FRONT_REQUESTS] = str(program.requests_max)
    with with_front(program):
        yield


def _run(main: Callable[[], object]) -> int:
    """Run vLLM's `main`; returns the exit code."""
    end = ServerShutdown()
    token = server_shutdown.set(end)
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except ValueError as error:
        _tell_refusal(error)
        raise
    finally:
        end.ended()
        server_shutdown.reset(token)
    return end.code


def _tell_refusal(error: ValueError) -> None:
    """Raise RefusedByVllm with vLLM's words for a pydantic `error`."""
    if not hasattr(error, "errors"):
        return
    words = [str(detail["msg"]).removeprefix("Value error, ") for detail in error.errors()]
    raise RefusedByVllm("; ".join(words)) from error


def vllm_command(deployment: Deployment, host: str, port: int) -> list[str]:
    """Arguments of `vllm` for this deployment."""
    return [
        "serve",
        str(deployment.weights_dir),
        "--served-model-name",
        deployment.time_model.name,
        "--host",
        host,
        "--port",
        str(port),
        # `usage` has a prompt's prefix-cache hits: tests of routers need them.
        "--enable-prompt-tokens-details",
        "--additional-config",
        json.dumps(deployment.settings.to_additional_config()),
    ]


def _is_noise(deployment: Deployment) -> bool:
    return deployment.weights_dir.resolve() in BUNDLED_WEIGHTS.values()


def _compact_json(vllm_arguments: list[str]) -> list[str]:
    """The flag for JSON without white space; empty where the user or a file may set it."""
    for argument in vllm_arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name == _CONFIG_FILE or name.partition(".")[0] == _STRUCTURED:
            return []
    return [_STRUCTURED, json.dumps(_COMPACT_JSON)]


_SPELL_OUT: Final = "give it to `ultraserve serve`, spelled out, on the command line"
_OURS: Final = {
    "grpc": "--grpc-port PORT serves gRPC beside HTTP",
    "additional_config": "this command fills it; use its own flags, or stock `vllm serve`",
    **dict.fromkeys(
        (
            *("api_key", "api_server_count", "host", "port"),
            *("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"),
        ),
        _SPELL_OUT,
    ),
}
"""vLLM's settings of which requests enter, and where, or that carry ours."""


def refuse_disallowed_flags(arguments: list[str]) -> None:
    """Raise UnsupportedFlag for flags that are ours, and for spans of stats that are off.

    ConfigError is for an unreadable `--config` file. vLLM's parser may end the process.
    """
    given = _parsed(arguments)
    for name, reason in _OURS.items():
        if getattr(given, name) is not None:
            raise UnsupportedFlag(flag=f"--{name.replace('_', '-')}", reason=reason)
    if given.otlp_traces_endpoint is not None and given.disable_log_stats:
        raise UnsupportedFlag(
            flag="--disable-log-stats",
            reason="--otlp-traces-endpoint makes the requests' spans of these stats",
        )


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """The arguments as read by vLLM; ours are None unless given."""
    import yaml  # type: ignore[import-untyped]
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    serve.set_defaults(**dict.fromkeys(_OURS))
    try:
        # A model's name comes first, as it does when the server starts.
        given: argparse.Namespace = parser.parse_args(["serve", "model", *arguments])
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        if "--config" not in arguments:
            raise
        path = "".join(arguments[arguments.index("--config") + 1 :][:1])
        expected = f"a YAML file of vLLM's flags, as `name: value` ({error})"
        raise ConfigError("config", path, expected) from error
    return given
