"""Other values of a machine's figures: "what if" of the catalog, in a user's words.

A value is relative to the catalog's (`2x`, `-10%`), or a number in the figure's unit, perhaps with
an SI prefix (`230ns`, `9.8TB/s`, `144GiB`). Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, Self, TypeVar

from emulator.errors import ConfigError
from emulator.specs.figure import SET, Figure, NamedFigures


class Changeable(Protocol):
    """A spec whose own figures, and those of its parts, can be changed by name."""

    @property
    def name(self) -> str:
        """Of the catalog."""

    def figures(self) -> NamedFigures:
        """All, derived ones too."""
        ...

    def own_figures(self) -> NamedFigures:
        """Those that are not derived."""
        ...

    def with_figures(self, figures: Mapping[str, Figure], /) -> Self:
        """A copy with other ones of `own_figures`; raises ConfigError for impossible values."""
        ...


ChangeableSpec = TypeVar("ChangeableSpec", bound=Changeable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A short name of figures that change together; those that a chip lacks are left out.

    `parts`: the figure of how many equal parts an absolute value is of.
    """

    figures: tuple[str, ...]
    about: str
    parts: str = ""


ALIASES: Final[Mapping[str, Alias]] = {
    "hbm_bandwidth": Alias(
        figures=("hbm_bytes_per_s", "dma_bytes_per_s"),
        about="both, as memory streams at the slower of the stacks' and the DMAs' rates",
    ),
    "hbm_bytes": Alias(
        figures=("hbm_stack_bytes",), about="of all stacks together", parts="hbm_stacks"
    ),
    "fp4_flops": Alias(figures=("tensor_fp4_flops_per_s",), about=""),
    "fp8_flops": Alias(figures=("tensor_fp8_flops_per_s",), about=""),
    "bf16_flops": Alias(figures=("tensor_bf16_flops_per_s",), about=""),
    "link_bandwidth": Alias(
        figures=(
            *("link_tray_bytes_per_s", "link_backplane_bytes_per_s"),
            "link_cross_rack_bytes_per_s",
        ),
        about="every tier of the scale-up fabric",
    ),
    "network_bandwidth": Alias(figures=("scale_out_bytes_per_s",), about="network cards"),
    "switch_hop": Alias(figures=("hop_ns",), about=""),
}

LAYOUT: Final = (
    *("racks", "trays_per_rack", "chips_per_tray", "switch_trays_per_rack", "chips"),
    *("cores", "default_lnc", "hbm_stacks"),
)
"""Counts by which chips, cores and stacks have their places: a change is another machine."""

_CONTINUOUS: Final = frozenset(
    ("ns", "W", "bytes/s", "FLOP/s", "op/s", "share", "of peak", "facility W per IT W")
)
"""Units of which a part makes sense; bytes are rounded to whole ones, others are counts."""

_SI: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _prefixed(words: Iterable[str], prefixes: Mapping[str, int]) -> dict[str, int]:
    return {prefix + word: factor for word in words for prefix, factor in prefixes.items()}


_SPELLINGS: Final[Mapping[str, Mapping[str, int]]] = {
    "ns": {"ns": 1, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ms": 10**6, "s": 10**9},
    "W": _prefixed(("W",), {each: _SI[each] for each in ("", "k", "M")}),
    "bytes": {"bytes": 1, **_prefixed(("B",), _SI | _BINARY)},
    "bytes/s": {"bytes/s": 1, **_prefixed(("B/s",), _SI | _BINARY)},
    "FLOP/s": _prefixed(("FLOP/s", "FLOPS"), _SI),
    "op/s": _prefixed(("op/s",), _SI),
}
"""Factors of what may follow a number, by the figure's unit; other units stand as they are."""

_SHOWN: Final = {
    "ns": "230ns or 0.23us",
    "W": "800W or 0.8kW",
    "bytes": "144GiB or 155GB",
    "bytes/s": "9.8TB/s",
    "FLOP/s": "2.5PFLOPS",
    "op/s": "1.2Top/s",
}

_TIMES_MAX: Final = 10**6

# Three digits of an exponent: a longer one would only take memory.
_VALUE: Final = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(?P<suffix>\S*)", re.ASCII
)


def with_changes(spec: ChangeableSpec, changes: Iterable[tuple[str, str]], /) -> ChangeableSpec:
    """`spec` with other figures, each a name or an alias and a value, all at once.

    A changed figure's source has its value in words, then the catalog's. Raises ConfigError for an
    unknown or derived figure, one that is set twice, another form, unit or sign, and values that
    do not go together.
    """
    own = dict(spec.own_figures())
    new: dict[str, Figure] = {}
    for name, text in changes:
        for each in figures_named(spec, name, text):
            if each in new:
                raise ConfigError(name, text, f"one value of {each}, which is set twice")
            alias = ALIASES.get(name)
            parts = own[alias.parts].count if alias and alias.parts else 1
            new[each] = _changed(name, text, each, own[each], parts)
    return spec.with_figures(new)


def figures_named(spec: Changeable, name: str, text: str) -> tuple[str, ...]:
    """The figures of `spec` that a name or an alias is of; raises ConfigError for none."""
    own = dict(spec.own_figures())
    alias = ALIASES.get(name)
    found = tuple(each for each in (alias.figures if alias else (name,)) if each in own)
    if found:
        return found
    derived = dict(spec.figures()).get(name)
    if derived is not None:
        raise ConfigError(name, text, f"one of the figures that it derives from: {derived.source}")
    missing = ", ".join(alias.figures) if alias else name
    raise ConfigError(name, text, f"a figure of {spec.name}, which has no {missing}")


def _changed(name: str, text: str, label: str, figure: Figure, parts: int) -> Figure:
    """One figure with the value of `text`; `name` is the user's."""
    compact = "".join(text.split())
    value, is_relative = _value(name, text, compact, figure)
    if not is_relative and parts > 1:
        value /= parts
        compact = f"{round(value)}{figure.unit}"
    if figure.unit == "bytes":
        value = Fraction(round(value))
    elif figure.unit not in _CONTINUOUS and value.denominator != 1:
        raise ConfigError(name, text, f"a whole number of {figure.unit}, now {figure.value:g}")
    if label in LAYOUT and value != Fraction(figure.value):
        raise ConfigError(
            name,
            text,
            f"{figure.value:g} {figure.unit}, by which everything has its place: `--set` changes "
            "rates, times, sizes and watts",
        )
    if value > _TIMES_MAX * Fraction(figure.value) > 0:
        raise ConfigError(name, text, f"at most a million times the catalog's {figure.value:g}")
    way = "of" if is_relative else "instead of"
    return Figure(float(value), figure.unit, f"{SET}{compact} {way} {figure.words}")


def _value(name: str, text: str, compact: str, figure: Figure) -> tuple[Fraction, bool]:
    """The value in the figure's unit, and whether it is relative."""
    found = _VALUE.fullmatch(compact)
    if found is None:
        raise ConfigError(name, text, _expected(figure))
    number, suffix = Fraction(found["number"]), found["suffix"]
    is_signed = found["number"][0] in "+-"
    if suffix == "%" and is_signed:
        return Fraction(figure.value) * (100 + number) / 100, True
    if is_signed:
        raise ConfigError(name, text, _expected(figure))
    if suffix == "x":
        return Fraction(figure.value) * number, True
    spellings = {"": 1, figure.unit.replace(" ", ""): 1, **_SPELLINGS.get(figure.unit, {})}
    if suffix not in spellings:
        raise ConfigError(name, text, _expected(figure))
    return number * spellings[suffix], False


def _expected(figure: Figure) -> str:
    shown = _SHOWN.get(figure.unit)
    example = f", as {shown}" if shown else ""
    return f"2x, +10%, -10%, or a number of {figure.unit}{example}"
