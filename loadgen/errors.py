"""Errors of the load generator, one line each.

A failed request is a result, not an error (`loadgen.records.result`).
"""

from pathlib import Path


def one_line(text: str) -> str:
    """Collapse white space and drop control characters.

    A server's text may hold escape sequences or marks of writing direction.
    """
    words = " ".join(text.split())
    return words if words.isprintable() else "".join(filter(str.isprintable, words))


class LoadError(Exception):
    """Stops a run before it has measured; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class OptionError(LoadError):
    """An option has a value that cannot be used; definite, nothing was sent."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"{option}={value}: expected {expected}")


class FileError(LoadError):
    """A file cannot be read or used; names the path, the line (from 1) if any, and why."""

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        where = f"{path}" if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class ServerError(LoadError):
    """The server did not answer a question the run depends on."""

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason
