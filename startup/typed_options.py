"""Command-line options declared once, as fields of frozen dataclasses.

A field's name, annotation and default are the option's; `option` adds its help. `add_options` adds
a class's options to a parser, `read_options` makes an object of the parsed ones.
"""

import argparse
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import (  # fmt: skip
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

REQUIRED: Final = MISSING
HIDDEN: Final = ""
"""Text of an option that no help shows."""

_KEY: Final = "option"
_METAVARS: Final = {int: "N", float: "X", Path: "FILE"}


class OptionClass(Protocol):
    """A dataclass of options; `GROUP` is "title: text" in the help, for itself and its heirs."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Options = TypeVar("Options", bound=OptionClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    text: str
    flags: tuple[str, ...]
    one_of: str
    needs_one: bool
    settings: dict[str, Any]


def option(
    default: Any, text: str, *flags: str, one_of: str = "", needs_one: bool = False, **settings: Any
) -> Any:
    """A dataclass field that is an option with the help `text`; `default` may be REQUIRED.

    `flags` replace `--name-of-the-field` (without the unit `_s`). Options with the same `one_of`
    exclude each other; with `needs_one` one of them is required. The help adds a default that
    `text` leaves out. `settings` go to argparse and override the annotation's: bool is a switch,
    `tuple[T, ...]` may be repeated, Literal and StrEnum have choices. A type as `default`, such as
    dict, is called for each object.
    """
    said = _Option(text=text, flags=flags, one_of=one_of, needs_one=needs_one, settings=settings)
    if isinstance(default, type):
        return field(default_factory=default, metadata={_KEY: said})
    return field(default=default, metadata={_KEY: said})


def add_options(
    parser: argparse._ActionsContainer,
    kind: type[OptionClass],
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, Any] | None = MappingProxyType({}),
) -> None:
    """Add the options of `kind`, except the fields `without`, each class's own in its group.

    `defaults` are a command's own, by field; with None a namespace holds only given options.
    """
    hints = get_type_hints(kind)
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    exclusive: dict[str, argparse._ActionsContainer] = {}
    for each in fields(kind):
        said: _Option | None = each.metadata.get(_KEY)
        if said is None or each.name in without:
            continue
        title, text = _group_of(kind, each.name)
        if title not in groups:
            groups[title] = parser.add_argument_group(title, text or None)
        place = groups[title]
        if said.one_of:
            if said.one_of not in exclusive:
                exclusive[said.one_of] = place.add_mutually_exclusive_group(required=said.needs_one)
            place = exclusive[said.one_of]
        flags = said.flags or (flag_of(each.name),)
        made = each.default_factory
        default = each.default if made is MISSING else made()
        if defaults is not None:
            default = defaults.get(each.name, default)
        settings = _settings(said, hints[each.name], default)
        if defaults is not None and default is not MISSING:
            settings["default"] = default
        place.add_argument(*flags, dest=each.name, **settings)


class RepeatedOption(argparse.Action):
    """Gathers a repeatable option's values; unlike `append`, the first replaces the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse's own
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Add one value."""
        before = getattr(namespace, self.dest, self.default)
        setattr(namespace, self.dest, [values] if before is self.default else [*before, values])


def given_options(
    kind: type[OptionClass], args: argparse.Namespace | Mapping[str, Any]
) -> dict[str, Any]:
    """The given options of `kind`, by field."""
    values = vars(args) if isinstance(args, argparse.Namespace) else args
    names = [each.name for each in fields(kind) if _KEY in each.metadata]
    given = {name: values[name] for name in names if name in values}
    return {name: tuple(one) if isinstance(one, list) else one for name, one in given.items()}


def read_options(kind: type[Options], args: argparse.Namespace) -> Options:
    """An object of the options, with its class's defaults; raises what the class raises."""
    return kind(**given_options(kind, args))


def flag_of(name: str) -> str:
    """The default flag of a field: `--hang-timeout` of hang_timeout_s."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def without_options(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """The words of a command line without the options `flags`, each of one value."""
    kept = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in flags:
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept


def _group_of(kind: type, name: str) -> tuple[str, str]:
    """The group of the most basic class with the field."""
    owner = next(
        c for c in reversed(kind.__mro__) if name in vars(c).get("__dataclass_fields__", ())
    )
    title, _, text = getattr(owner, "GROUP", "").partition(": ")
    return title, text


def _settings(said: _Option, hint: Any, default: Any) -> dict[str, Any]:
    kind, repeats = _value_type(hint)
    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(said.text, default)}
    if default is MISSING:
        settings["required"] = not said.one_of
    if kind is bool:
        settings["action"] = "store_false" if default is True else "store_true"
    else:
        words = _words(hint)
        settings |= {"type": str if words else kind, "metavar": _METAVARS.get(kind)}
        settings["choices"] = words or None
        if repeats and "type" not in said.settings:
            settings["action"] = RepeatedOption
    return settings | said.settings


def _words(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    return [*map(str, hint)] if isinstance(hint, type) and issubclass(hint, StrEnum) else []


def _value_type(hint: Any) -> tuple[Any, bool]:
    """Type of a value, and whether it repeats: of `int | None`, `tuple[str, ...]`."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _value_type(next(part for part in get_args(hint) if part is not types.NoneType))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _value_type(get_args(hint)[0])[0], True
    return (hint if isinstance(hint, type) else str), False


def _help(text: str, default: Any) -> str:
    if text is HIDDEN:
        return argparse.SUPPRESS
    text = text.replace("%", "%%")
    if default in (MISSING, None, "", (), {}) or isinstance(default, bool) or "(default" in text:
        return text
    if isinstance(default, int | float):
        default = f"{default:,}" if isinstance(default, int) else f"{default:g}"
    return f"{text} (default: {default})"
