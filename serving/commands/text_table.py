"""Rows as aligned lines of text."""

from collections.abc import Sequence


def table_lines(rows: Sequence[Sequence[str]], *, right: frozenset[int]) -> list[str]:
    """Lines whose columns are as wide as their widest cell; those numbered in `right` end flush.

    The first row is the header. Rows must have equally many cells; trailing blanks are cut.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if index in right else f"{cell:<{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
