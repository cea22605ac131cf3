"""Weights that were published on one replica: what its next process has to publish again. Pure.

A process numbers its versions from 1, its command line's weights; the last one published is served,
and `Rollback` takes it back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KEPT_MAX: Final = 4
"""Publications that a new process repeats, each a reading of weights: more rollbacks than anybody
does in a row. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Weights that were published, and their number in the process that reads them now."""

    weights_dir: str
    note: str
    version: int


class PublishedWeights:
    """The publications that led to what a replica serves, the served one last."""

    def __init__(self) -> None:
        self._order: list[Publication] = []

    @property
    def order(self) -> Sequence[Publication]:
        """The oldest first; empty while the command line's are served."""
        return self._order

    def publish(self, publication: Publication) -> None:
        """Note weights that a replica serves from now on, unless later ones are known; the same
        version again changes nothing.
        """
        if publication.version not in [each.version for each in self._order]:
            order = sorted([*self._order, publication], key=lambda each: each.version)
            self._order = order[-KEPT_MAX:]

    def roll_back(self, version: int) -> None:
        """Note that the replica serves `version` again."""
        while self._order and self._order[-1].version != version:
            self._order.pop()

    def repeated(self, versions: Sequence[int]) -> None:
        """Note the numbers that a new process has given to `order`."""
        self._order = [
            Publication(weights_dir=each.weights_dir, note=each.note, version=version)
            for each, version in zip(self._order, versions, strict=True)
        ]
