"""Printing to standard output: perhaps a full disk, or a closed pipe."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from loadgen.errors import LoadError


class OutputClosed(Exception):
    """The reader of standard output has closed it, as `head` does."""


@contextmanager
def printing() -> Iterator[None]:
    """Flush the block's output; raises LoadError, or OutputClosed for a pipe without a reader."""
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
    """Discard the buffer: at exit Python would write it again."""
    with suppress(OSError, ValueError):  # a stream without a file, as tests have it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
