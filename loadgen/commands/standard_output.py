"""Printing on standard output, which may be a full disk, or a pipe whose reader has closed it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from loadgen.errors import LoadError


class OutputClosed(Exception):
    """The reader of standard output has closed it, as `head` does."""


@contextmanager
def printing() -> Iterator[None]:
    """Write what the block prints; raises LoadError, or OutputClosed if the pipe has no reader."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        _discard_the_rest()
        raise OutputClosed from error
    except OSError as error:
        _discard_the_rest()
        raise LoadError(f"standard output cannot be written ({error.strerror})") from error


def _discard_the_rest() -> None:
    """Let what is still in the buffer go nowhere: at its exit Python would try again."""
    with suppress(OSError, ValueError):  # a stream without a file, as tests have it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
