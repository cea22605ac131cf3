"""The columns of a CSV table of kernels."""

import csv
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from serving.analysis.validate.kernels.law_fit import Strings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelColumns:
    """A file's columns as text; raises ConfigError for a missing column or a word for a number.

    `rows`: of the file, from 0, those that the columns have; `excluded`: numbers of others, by
    reason.
    """

    path: Path
    texts: Mapping[str, Strings]
    rows: Int64s
    excluded: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.texts.values())))

    def text(self, name: str) -> Strings:
        """A column as it stands."""
        if name not in self.texts:
            raise ConfigError("kernels", self.path.name, f"a column {name}")
        return self.texts[name]

    def number(self, name: str) -> Float64s:
        """A column of numbers; 0 where it is empty."""
        texts = self.text(name)
        try:
            return np.where(texts == "", "0", texts).astype(np.float64)
        except ValueError:
            raise ConfigError("kernels", self.path.name, f"numbers as {name}") from None

    def lines(self) -> Strings:
        """Each row's place: file and line; the header is line 1."""
        places = [f"{self.path.name}:{row + 2}" for row in self.rows.tolist()]
        return np.array(places, dtype=np.str_)

    def where(self, name: str, known: Collection[str]) -> "KernelColumns":
        """Rows whose text in a column is known, if any; the others are counted."""
        texts = self.text(name)
        kept = np.isin(texts, list(known))
        unknown = Counter(texts[~kept].tolist())
        expected = f"expected one of {', '.join(known)}"
        return replace(
            self,
            texts={column: each[kept] for column, each in self.texts.items()},
            rows=self.rows[kept],
            excluded={
                **self.excluded,
                **{f"{name} {text}: {expected}": count for text, count in unknown.items()},
            },
        )


def read_columns(path: Path) -> KernelColumns:
    """The table at `path`; ConfigError, naming it, where it cannot be read or has no rows."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            names, *rows = csv.reader(lines)
    except OSError as error:
        raise ConfigError("kernels", path, f"a file that can be read ({error.strerror})") from error
    except ValueError:
        raise ConfigError("kernels", path, "a CSV file with a header") from None
    if not rows or any(len(row) != len(names) for row in rows):
        raise ConfigError("kernels", path, f"rows of {len(names)} fields")
    columns: Any = np.array(rows).T
    texts = dict(zip(names, columns, strict=True))
    return KernelColumns(path=path, texts=texts, rows=np.arange(len(rows)))


def joined(*parts: Strings) -> Strings:
    """Texts joined by points, [rows]."""
    whole = parts[0]
    for part in parts[1:]:
        whole = np.char.add(np.char.add(whole, "."), part)
    return whole
