"""The columns of a CSV table of kernels."""

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
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
        return np.array([f"{self.path.name}:{row + 2}" for row in self.rows.tolist()])

    def where(self, name: str, refusal: Callable[[str], str | None]) -> "KernelColumns":
        """Without rows for whose text in a column there is a refusal, which is their reason.

        Raises ConfigError with the first reason where none is left.
        """
        texts = self.text(name)
        reasons = {text: refusal(text) for text in np.unique(texts).tolist()}
        refused = Counter(reason for text in texts.tolist() if (reason := reasons[text]))
        if not refused:
            return self
        kept: Bools = np.array([reasons[text] is None for text in texts.tolist()])
        if not kept.any():
            raise ConfigError("kernels", self.path.name, f"rows that are known: {min(refused)}")
        return replace(
            self,
            texts={column: each[kept] for column, each in self.texts.items()},
            rows=self.rows[kept],
            excluded={**self.excluded, **refused},
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
