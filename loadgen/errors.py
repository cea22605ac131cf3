"""Errors of the load generator, each as one line for its user.

A request that fails is not here: that is a result, and is counted (`loadgen.records.result`).
"""

from pathlib import Path


def one_line(text: str) -> str:
    """Make one line of `text` that a terminal only shows: without control characters.

    Words that came from a server may hold escape sequences, or marks that turn the direction of
    writing; runs of white space become one space.
    """
    words = " ".join(text.split())
    return words if words.isprintable() else "".join(filter(str.isprintable, words))


class LoadError(Exception):
    """Anything that stops a run before it has measured; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class OptionError(LoadError):
    """An option has a value that cannot be used; definite, nothing was sent."""

    def __init__(self, option: str, value: object, *, expected: str) -> None:
        super().__init__(f"{option}={value}: expected {expected}")


class FileError(LoadError):
    """A file that is read cannot be used; names it, the line (from 1) if there is one, and why."""

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        where = f"{path}" if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class ServerError(LoadError):
    """The server did not answer a question that the run depends on."""

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason
