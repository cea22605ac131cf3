"""Conflicting sources: a switch between several readings of the same figures.

Where sources disagree, the catalog takes one reading and names the others; a switch swaps them, so
that whoever doubts a figure can see what another one would change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from emulator.errors import ConfigError
from emulator.specs.figure import Figure

Spec = TypeVar("Spec")


class Switchable(Protocol):
    """A spec with switches, its own or those of its parts."""

    def read_as(self, name: str, reading: str, /) -> Self:
        """Itself with a switch turned; raises ConfigError that lists what there is."""
        ...


SwitchableSpec = TypeVar("SwitchableSpec", bound=Switchable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to read the sources: the fields that it sets, by name, and why."""

    name: str
    why: str
    figures: Mapping[str, Figure | str] = field(hash=False)  # a key may hold a spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Readings of one conflict, the default first; its figures are those of the spec itself.

    Raises ConfigError unless there are two readings with names of their own that set the same
    fields: turning a switch forth and back then leaves nothing behind.
    """

    name: str
    readings: tuple[Reading, ...]

    def __post_init__(self) -> None:
        names = [reading.name for reading in self.readings]
        if len(names) < 2 or len(set(names)) != len(names):
            raise ConfigError(
                field=f"switch {self.name}", value=names, expected="two readings or more, all named"
            )
        fields = {frozenset(reading.figures) for reading in self.readings}
        if len(fields) > 1:
            raise ConfigError(
                field=f"switch {self.name}", value=names, expected="readings of the same fields"
            )

    def reading(self, name: str) -> Reading:
        """The reading of that name; raises ConfigError that lists the names."""
        for reading in self.readings:
            if reading.name == name:
                return reading
        names = ", ".join(reading.name for reading in self.readings)
        raise ConfigError(field=f"reading {self.name}", value=name, expected=f"one of {names}")

    def reading_of(self, spec: object) -> Reading | None:
        """The reading that `spec` has; None when somebody set its figures in another way."""
        for reading in self.readings:
            if all(getattr(spec, field) == value for field, value in reading.figures.items()):
                return reading
        return None


def switch_from(
    spec: object, *, name: str, default: str, why: str, others: tuple[Reading, ...]
) -> Switch:
    """A switch whose default reading is what `spec` has, in the fields that the others set."""
    own = {field: getattr(spec, field) for field in others[0].figures}
    return Switch(name=name, readings=(Reading(name=default, why=why, figures=own), *others))


def apply_reading(spec: Spec, reading: Reading) -> Spec:
    """`spec`, a dataclass, with the figures of `reading`."""
    return replace(spec, **reading.figures)  # type: ignore[type-var]


def with_readings(spec: SwitchableSpec, texts: Iterable[str]) -> SwitchableSpec:
    """`spec` with switches turned, each text "SWITCH=READING", in their order.

    Raises ConfigError for a text of another form, and for switches and readings it does not have.
    """
    for text in texts:
        name, equals, reading = text.partition("=")
        if not (name and equals and reading):
            raise ConfigError(field="reading", value=text, expected="SWITCH=READING")
        spec = spec.read_as(name, reading)
    return spec
