"""Unit factors, in one place: GB is 10^9, GiB is 2^30, scheduled time is whole nanoseconds."""

from typing import Final

MB: Final = 10**6
GB: Final = 10**9

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

NS_PER_S: Final = 10**9

BITS_PER_BYTE: Final = 8


def gib_text(count_bytes: float, digits: int = 1) -> str:
    """A size of HBM in GiB, for a reader."""
    return f"{count_bytes / GIB:,.{digits}f} GiB"
