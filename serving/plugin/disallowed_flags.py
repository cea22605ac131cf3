"""Flags that `ultraserve serve` reads itself, refused where vLLM's parser finds them.

vLLM accepts prefixes of flags, dots and underscores in them, and flags from its `--config` YAML
file, so its own parser reads the command line.
"""

import argparse
from typing import Final

from emulator.errors import ConfigError
from serving.errors import UnsupportedFlag

_SPELL_OUT: Final = "give it to `ultraserve serve`, spelled out, on the command line"
_OURS: Final = {
    "grpc": "--grpc-port PORT serves gRPC beside HTTP",
    "additional_config": "this command fills it; use its own flags, or stock `vllm serve`",
    **dict.fromkeys(
        (
            *("api_key", "host", "port"),
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
