"""The body of a response, for what writes to its connection past the app that makes it."""

from contextvars import ContextVar
from typing import Protocol


class DirectBody(Protocol):
    """The body of a response, as its connection has it."""

    def is_open(self) -> bool:
        """Whether a chunk may be written now, behind all that were sent."""

    def write(self, chunk: bytes) -> None:
        """Write a chunk, if open."""


direct_body: ContextVar[DirectBody | None] = ContextVar("ultraserve_direct_body", default=None)
"""The body of the response that this task and its children make; None where none can be written
directly."""
