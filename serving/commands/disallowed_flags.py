"""What vLLM's own parser would take for flags that are ours to read: it is refused.

vLLM takes beginnings of flags for them, and flags from the YAML file of its `--config`, where a
key is a flag's name and a value can be anything that a command line could hold.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from emulator.errors import ConfigError
from serving.errors import UnsupportedFlag

_OURS: Final = (
    *("--api-key", "--host", "--port", "--grpc"),
    *("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs", "--ssl-cert-reqs"),
)
"""vLLM's flags that decide who gets in, and where."""


def refuse_disallowed_flags(vllm_arguments: Sequence[str]) -> None:
    """Raise UnsupportedFlag for a flag, or a line of a `--config` file, that is ours to read.

    Raises ConfigError for a `--config` file that cannot be read.
    """
    for name in _ours_among(vllm_arguments):
        if name == "--grpc":
            raise UnsupportedFlag(flag=name, reason="--grpc-port PORT serves gRPC beside HTTP")
        meant = [flag for flag in _OURS if flag.startswith(name)]
        raise UnsupportedFlag(flag=name, reason=f"spell out {' or '.join(meant)}")
    for path in _config_files(vllm_arguments):
        for name in _ours_among(_arguments_in(path)):
            raise UnsupportedFlag(
                flag=f"--config {path}",
                reason=f"{name.removeprefix('--')}: give keys, addresses and TLS files on the "
                "command line, for HTTP and gRPC at once",
            )


def _ours_among(arguments: Iterable[str]) -> Iterable[str]:
    """The name of each argument that is, or begins, the name of one of ours."""
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if len(name) > len("--") and any(flag.startswith(name) for flag in _OURS):
            yield name


def _config_files(arguments: Sequence[str]) -> Iterable[Path]:
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config":
            path = Path(value if equals else "".join(arguments[i + 1 : i + 2]))
            if path.is_file():  # what is missing is vLLM's to tell
                yield path


def _arguments_in(path: Path) -> list[str]:
    """What vLLM makes of the file: each key a flag, each value arguments after it."""
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(field="config", value=path, expected="a YAML file to read") from error
    if not isinstance(config, dict):
        raise ConfigError(field="config", value=path, expected="flags of vLLM, as `name: value`")
    arguments = []
    for key, value in config.items():
        arguments += [f"--{key}", *_values(value)]
    return arguments


def _values(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
