"""Assumption sets: alternatives where sources disagree about the same figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from emulator.errors import ConfigError
from emulator.specs.figure import Figure

Spec = TypeVar("Spec")


class Assuming(Protocol):
    """A spec with assumption sets, its own or those of its parts."""

    def assuming(self, name: str, assumption: str, /) -> Self:
        """A copy with `assumption` of the set `name`; raises ConfigError that lists the sets."""
        ...


AssumingSpec = TypeVar("AssumingSpec", bound=Assuming)


@dataclass(frozen=True, slots=True)
class Assumption:
    """One reading of the sources: the fields that it sets, by name, and why."""

    name: str
    why: str
    figures: Mapping[str, Figure | str] = field(hash=False)  # a key may hold a spec


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionSet:
    """The assumptions of one conflict; the first is the spec's own, the default.

    Raises ConfigError unless two or more, with distinct names, set the same fields: a choice can
    then be undone.
    """

    name: str
    assumptions: tuple[Assumption, ...]

    def __post_init__(self) -> None:
        names = [assumption.name for assumption in self.assumptions]
        if len(names) < 2 or len(set(names)) != len(names):
            raise ConfigError(f"switch {self.name}", names, "two assumptions or more, all named")
        fields = {frozenset(assumption.figures) for assumption in self.assumptions}
        if len(fields) > 1:
            raise ConfigError(f"switch {self.name}", names, "assumptions of the same fields")

    def assumption(self, name: str) -> Assumption:
        """The assumption of that name; raises ConfigError that lists the names."""
        for assumption in self.assumptions:
            if assumption.name == name:
                return assumption
        names = ", ".join(assumption.name for assumption in self.assumptions)
        raise ConfigError(f"assumption {self.name}", name, f"one of {names}")

    def assumption_of(self, spec: object) -> Assumption | None:
        """The assumption of `spec`; None when its figures were set in another way."""
        for assumption in self.assumptions:
            if all(getattr(spec, field) == value for field, value in assumption.figures.items()):
                return assumption
        return None


def assumption_set(
    spec: object, name: str, *others: Assumption, default: str, why: str
) -> AssumptionSet:
    """An assumption set whose default is `spec` itself, in the fields that the others set."""
    own = {field: getattr(spec, field) for field in others[0].figures}
    return AssumptionSet(name=name, assumptions=(Assumption(default, why, own), *others))


def apply_assumption(spec: Spec, assumption: Assumption) -> Spec:
    """`spec`, a dataclass, with the figures of `assumption`."""
    return replace(spec, **assumption.figures)  # type: ignore[type-var]


def with_assumptions(spec: AssumingSpec, texts: Iterable[str]) -> AssumingSpec:
    """`spec` under other assumptions, each text "SWITCH=ASSUMPTION", in their order.

    Raises ConfigError for another form, and for unknown sets and assumptions.
    """
    for text in texts:
        name, equals, assumption = text.partition("=")
        if not (name and equals and assumption):
            raise ConfigError("assumption", text, "SWITCH=ASSUMPTION")
        spec = spec.assuming(name, assumption)
    return spec
