"""The text of a file of recorded traffic, compressed by gzip or not: told by its first bytes."""

import gzip
import zlib
from pathlib import Path
from typing import Final

_GZIP: Final = b"\x1f\x8b"


def read_recorded(path: Path) -> str:
    """The whole text, without a byte order mark, and with line feeds at the ends of its lines.

    Raises OSError for a file that cannot be read, or whose compressed data is not whole, and
    UnicodeDecodeError for one that is not UTF-8.
    """
    content = path.read_bytes()
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(0, "its gzip data is damaged or not whole") from error
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def is_csv(path: Path) -> bool:
    """Whether it is named as one: `.csv`, or `.csv.gz`."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")
