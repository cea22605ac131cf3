"""A figure: one hardware number with its unit and source, the material of the catalog."""

import math
from dataclasses import dataclass, fields
from typing import Any

ASSUMED = "assumed"
SET = "set: "
"""What the source of a figure begins with that a user has changed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A finite `value` in `unit`; `source` is a document, arithmetic, "assumed" and why, or "set: "
    and what was changed.

    Raises ValueError for a value that is not finite, or an empty unit or source.
    """

    value: float
    unit: str
    source: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a figure's value is finite, not {self.value}")
        if not self.unit or not self.source:
            raise ValueError(f"a figure has a unit and a source: {self.unit!r}, {self.source!r}")

    @property
    def assumed(self) -> bool:
        """Whether the number is unpublished."""
        return self.source.startswith(ASSUMED)

    @property
    def words(self) -> str:
        """Value, unit and source."""
        return f"{self.value:g} {self.unit} ({self.source})"

    def comes_from(self, catalog: "Figure") -> bool:
        """Whether it is `catalog`'s, or what a user has set it to."""
        return self == catalog or (self.is_set and catalog.words in self.source)

    @property
    def is_set(self) -> bool:
        """Whether a user has changed the catalog's value."""
        return self.source.startswith(SET)

    @property
    def set_to(self) -> str:
        """The value that a user gave, as `2x` or `230ns`; empty for the catalog's own."""
        return self.source.removeprefix(SET).partition(" ")[0] if self.is_set else ""

    @property
    def count(self) -> int:
        """The value as a whole number; raises ValueError when it is not one."""
        whole = int(self.value)
        if whole != self.value:
            raise ValueError(f"{self.value} {self.unit} is not a whole number")
        return whole


NamedFigures = tuple[tuple[str, Figure], ...]


def figures_of(spec: Any) -> NamedFigures:
    """The figures among a dataclass's fields, by the field's name."""
    named = ((field.name, getattr(spec, field.name)) for field in fields(spec))
    return tuple((name, value) for name, value in named if isinstance(value, Figure))
