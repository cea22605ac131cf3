"""Takes keys out of what the system shows of this process: its command line, its environment.

Every user of a machine can read the command lines of all processes, for as long as they run. Linux
shows the memory that a process was started with, so what is written over there is shown no more.
Between the start and that moment a key on the command line could be read; in a variable only the
same user's processes ever could.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/self/stat")
_MEMORY: Final = Path("/proc/self/mem")
_AFTER_NAME: Final = 2  # fields before those that follow the process's name in parentheses
_ARGUMENTS: Final = (48, 49)  # proc(5): arg_start and arg_end, counted from 1
_ENVIRONMENT: Final = (50, 51)  # env_start and env_end

_MASK: Final = b"*"


def hide_in_process_list(*, flags: tuple[str, ...], variables: tuple[str, ...]) -> None:
    """Write over the values of `flags` and of `variables` in the memory this process began with.

    The values that Python has read already stay as they are. Where the system has no such memory,
    or does not let us, nothing changes.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        _rewrite(_ARGUMENTS, lambda words: _without_values(words, flags))
        _rewrite(_ENVIRONMENT, lambda words: _without_variables(words, variables))


def _without_values(words: list[bytes], flags: tuple[str, ...]) -> list[bytes]:
    names = {_spelled(flag.encode()) for flag in flags}
    hidden, inside = [], False
    for word in words:
        name, equals, value = word.partition(b"=")
        if word.startswith(b"-"):
            is_flag = _spelled(name) in names
            inside = is_flag and not equals
            hidden.append(name + equals + _MASK * len(value) if is_flag else word)
        else:
            hidden.append(_MASK * len(word) if inside else word)
    return hidden


def _without_variables(words: list[bytes], variables: tuple[str, ...]) -> list[bytes]:
    names = {variable.encode() for variable in variables}
    hidden = []
    for word in words:
        name, equals, value = word.partition(b"=")
        hidden.append(name + equals + _MASK * len(value) if name in names else word)
    return hidden


def _spelled(flag: bytes) -> bytes:
    return flag.replace(b"_", b"-")


def _rewrite(fields: tuple[int, int], change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the words, which end with a zero byte each, of the memory between two addresses."""
    after_name = _STAT.read_text().rpartition(")")[2].split()
    start, end = (int(after_name[field - 1 - _AFTER_NAME]) for field in fields)
    with _MEMORY.open("r+b", buffering=0) as memory:
        memory.seek(start)
        before = memory.read(end - start)
        after = b"\0".join(change(before.split(b"\0")))
        assert len(after) == len(before)
        memory.seek(start)
        memory.write(after)
