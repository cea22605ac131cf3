"""The protocol of a dispatcher's workload."""

from typing import Protocol

from loadgen.records.request import Session


class Workload(Protocol):
    """Sessions of a traffic class, made on demand. Immutable, and can be pickled."""

    def __len__(self) -> int:
        """How many sessions there are."""
        ...

    @property
    def requests(self) -> int:
        """How many requests they have in all."""
        ...

    def session(self, index: int) -> Session:
        """Make session `index`: always the same, in whichever process."""
        ...

    def requests_of(self, index: int) -> int:
        """How many requests session `index` has, without making it."""
        ...
