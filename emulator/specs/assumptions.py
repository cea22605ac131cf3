"""Assumption sets: alternatives where sources disagree about the same figures.

A user chooses among them, and beside them sets figures to what no source says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from emulator.errors import ConfigError
from emulator.specs.figure import Figure
from emulator.specs.figure_changes import ALIASES, Changeable, with_changes
from emulator.specs.name_suggestions import did_you_mean

Spec = TypeVar("Spec")


class Assuming(Changeable, Protocol):
    """A spec with assumption sets, its own or those of its parts."""

    @property
    def assumption_sets(self) -> "tuple[AssumptionSet, ...]":
        """All."""
        ...

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
        """The assumption of `spec`, also where a user has set its figures; None for other ones."""
        for assumption in self.assumptions:
            if all(_agrees(getattr(spec, at), value) for at, value in assumption.figures.items()):
                return assumption
        return None


def assumption_set(
    spec: object, name: str, *others: Assumption, default: str, why: str
) -> AssumptionSet:
    """An assumption set whose default is `spec` itself, in the fields that the others set."""
    own = {field: getattr(spec, field) for field in others[0].figures}
    return AssumptionSet(name=name, assumptions=(Assumption(default, why, own), *others))


def apply_assumption(spec: Spec, assumption: Assumption) -> Spec:
    """`spec`, a dataclass, with the figures of `assumption`; what a user has set stays."""
    figures = {
        field: value
        for field, value in assumption.figures.items()
        if not _is_set(getattr(spec, field))
    }
    return replace(spec, **figures)  # type: ignore[type-var]


def _agrees(held: object, value: object) -> bool:
    if isinstance(held, Figure) and isinstance(value, Figure):
        return held.comes_from(value)
    return held == value


def _is_set(held: object) -> bool:
    return isinstance(held, Figure) and held.is_set


def with_assumptions(spec: AssumingSpec, texts: Iterable[str]) -> AssumingSpec:
    """`spec` under other assumptions, and with other figures (`with_changes`).

    Each text is "SWITCH=ASSUMPTION" or "FIGURE=VALUE"; the assumptions apply in their order, then
    the figures, all at once. Raises ConfigError for another form, unknown names and wrong values.
    """
    changes = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError("assumption", text, "SWITCH=ASSUMPTION or FIGURE=VALUE")
        if turns_switch(spec, text):
            spec = spec.assuming(name, value)
        else:
            _check_name(spec, name)
            changes.append((name, value))
    return with_changes(spec, changes) if changes else spec


def machine_named(spec: AssumingSpec, shared: Sequence[str], own: Sequence[str]) -> AssumingSpec:
    """`spec` with assumptions and figures that others have, too, and with its `own`, which are then
    in its name ("trn3-nl72x2:hop_ns=230ns"); raises ConfigError as `with_assumptions`.
    """
    made = with_assumptions(spec, [*shared, *own])
    name = ":".join((spec.name, *own))
    return replace(made, name=name) if own else made  # type: ignore[type-var]


def accepts(spec: Assuming, text: str) -> bool:
    """Whether "NAME=..." names a switch or a figure of `spec`."""
    name = text.partition("=")[0]
    figures = {label for label, _ in (*spec.own_figures(), *spec.figures())}
    of_alias = ALIASES[name].figures if name in ALIASES else ()
    return turns_switch(spec, text) or name in figures or any(each in figures for each in of_alias)


def turns_switch(spec: Assuming, text: str) -> bool:
    """Whether "NAME=..." names a switch of `spec`, and no figure."""
    return text.partition("=")[0] in {each.name for each in spec.assumption_sets}


def _check_name(spec: Assuming, name: str) -> None:
    """Raise ConfigError with what there is for a name that is neither figure nor alias."""
    figures = [label for label, _ in (*spec.own_figures(), *spec.figures())]
    if name in figures or name in ALIASES:
        return
    switches = [each.name for each in spec.assumption_sets]
    near = did_you_mean(name, [*ALIASES, *figures]) or did_you_mean(name, switches)
    raise ConfigError(
        "assumption",
        name,
        f"a switch of {spec.name}: {', '.join(switches) or 'none'}; or a figure that `ultraserve "
        f"describe {spec.name}` prints{near}",
    )
