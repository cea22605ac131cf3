"""Refuses debugging variables of vLLM and Ray that would open what this server keeps shut."""

from collections.abc import Mapping
from typing import Final

from emulator.errors import ConfigError

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
