"""Keys on this process's command line, which every user can read until they are hidden here.

Also refuses debugging variables of vLLM and Ray that would open what this server keeps shut.
"""

import shlex
import sys
from collections.abc import Mapping
from typing import Final

import setproctitle

from emulator.errors import ConfigError

API_KEY_FLAG: Final = "--api-key"
API_KEY_VARIABLE: Final = "VLLM_API_KEY"
"""By which a server is given a key without a command line that shows it."""

_MASK = "*"


def hide_in_process_list(*, flags: tuple[str, ...]) -> None:
    """Show stars for the values of `flags` in the process list; `sys.argv` stays."""
    words = _without_values(sys.orig_argv, flags)
    if words != sys.orig_argv:
        setproctitle.setproctitle(shlex.join(words))


def _without_values(words: list[str], flags: tuple[str, ...]) -> list[str]:
    names = {_spelled(flag) for flag in flags}
    hidden, inside = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            is_flag = _spelled(name) in names
            inside = is_flag and not equals
            hidden.append(name + equals + _MASK * len(value) if is_flag else word)
        else:
            hidden.append(_MASK * len(word) if inside else word)
    return hidden


def _spelled(flag: str) -> str:
    return flag.replace("_", "-")


_SAFE: Final = {
    # vLLM: /sleep, /collective_rpc, /reset_prefix_cache and more, open to whoever reaches the port.
    "VLLM_SERVER_DEV_MODE": (
        ("", "0"),
        "unset: vLLM's development endpoints are off here; `ultraserve engine` and the control "
        "port do what they are for",
    ),
    # vLLM: pickle, and so code, in its messages between processes.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": (
        ("", "0"),
        "unset: no message between processes is unpickled here",
    ),
    # vLLM: another program in place of its HTTP app, which asks nobody for our keys.
    "VLLM_USE_RUST_FRONTEND": (
        ("", "0"),
        "unset: keys, limits and probes are in front of vLLM's own HTTP app alone",
    ),
    # Ray: its ports run code for whoever reaches them. To Ray an empty word is one, and not this.
    "RAY_AUTH_MODE": (("token",), "unset, or token: whoever reaches Ray's ports could run code"),
}


def refuse_unsafe_environment(environment: Mapping[str, str]) -> None:
    """Raise ConfigError, naming the variable, for the first unsafe one."""
    for name, (safe, expected) in _SAFE.items():
        value = environment.get(name)
        if value is not None and value.lower() not in safe:
            raise ConfigError(name, value, expected)
