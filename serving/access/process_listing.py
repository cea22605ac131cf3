"""Hides keys on this process's command line, which every user can read until the call."""

import shlex
import sys

import setproctitle

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
