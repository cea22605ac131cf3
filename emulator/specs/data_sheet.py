"""A data sheet: the public figures of a chip that cannot be timed."""

from dataclasses import dataclass

from emulator.errors import ConfigError
from emulator.specs.figure import NamedFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSheet:
    """Figures by the names of a chip's fields, and names of unpublished ones.

    Raises ConfigError when none is unknown, or a figure is both. `announced`: not yet delivered.
    """

    name: str
    maker: str
    announced: bool = False
    known: NamedFigures
    unknown: tuple[str, ...]
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.unknown:
            raise ConfigError(f"{self.name}.unknown", "()", "unknown figures")
        both = {label for label, _ in self.known} & set(self.unknown)
        if both:
            raise ConfigError(f"{self.name}.unknown", sorted(both), "figures not known")

    def figures(self) -> NamedFigures:
        """Every known figure by its name."""
        return self.known

    @property
    def status(self) -> str:
        """One line: the missing figures."""
        state = "announced, " if self.announced else ""
        return f"{state}cannot be timed: {', '.join(self.unknown)} unpublished"
