"""Prometheus's text format, with label sets that are rendered once.

prometheus_client renders labels per sample: for 144 chips ten times the cost of the numbers.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/, text-based.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Final

from serving.telemetry.families.family import Family

Rows = Collection[tuple[tuple[str, ...], float]]
"""Label values, and the number."""

_RENDERED_MAX: Final = 1 << 17
"""Label sets cached: ten pages of 144 chips."""

_SETS_MAX: Final = 8
"""A machine's chips and cores, and the metered ones; the rest for tests."""


class TextPage:
    """Families, each added once (and under its old name), and left out without rows."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: set[str] = set()

    def add(self, family: Family, rows: Rows) -> None:
        """Add a family with its samples."""
        for name in family.names:
            sample, labels = name.sample, name.labels
            self._take(
                name, [f"{_prefix(sample, labels, values)} {value!r}" for values, value in rows]
            )

    def add_each(self, family: Family, sets: "LabelSets", values: Collection[float]) -> None:
        """Add a family with a sample for each of the label sets, in order."""
        for name in family.names:
            pairs = zip(sets.prefixes(name), values, strict=True)
            self._take(name, [f"{prefix} {value!r}" for prefix, value in pairs])

    def _take(self, family: Family, lines: list[str]) -> None:
        assert family.kind != "histogram", family
        assert family.name not in self._names, family
        if lines:
            self._names.add(family.name)
            self._lines += (_header(family), *lines)

    def one(self, family: Family, value: float) -> None:
        """Add a family without labels."""
        self.add(family, [((), value)])

    def text(self) -> str:
        """The page."""
        return "\n".join((*self._lines, ""))


class LabelSets:
    """Label values that several families share, rendered once for each."""

    def __init__(self, values: tuple[tuple[str, ...], ...]) -> None:
        self._values = values
        self._rendered: dict[str, list[str]] = {}

    def prefixes(self, family: Family) -> list[str]:
        """The text before each number."""
        known = self._rendered.get(family.sample)
        if known is None:
            known = [_prefix(family.sample, family.labels, values) for values in self._values]
            self._rendered[family.sample] = known
        return known


@lru_cache(maxsize=_SETS_MAX)
def label_sets(values: tuple[tuple[str, ...], ...]) -> LabelSets:
    """The label sets of `values`, cached."""
    return LabelSets(values)


@lru_cache(maxsize=1_024)
def _header(family: Family) -> str:
    words = family.help.replace("\\", "\\\\")
    return f"# HELP {family.sample} {words}\n# TYPE {family.sample} {family.kind}"


@lru_cache(maxsize=_RENDERED_MAX)
def _prefix(sample: str, labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not labels:
        return sample
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(labels, values, strict=True))
    return f"{sample}{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
