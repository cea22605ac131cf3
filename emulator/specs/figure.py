"""A figure: one hardware number with its unit and source, the material of the catalog."""

import math
from dataclasses import dataclass, fields
from typing import Any

ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Figure:
    """A finite `value` in `unit`; `source` is a document, arithmetic, or "assumed" and why.

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
