"""Unit factors, in one place: GB is 10^9, GiB is 2^30, scheduled time is whole nanoseconds."""

from typing import Final

KB: Final = 10**3
MB: Final = 10**6
GB: Final = 10**9
TB: Final = 10**12

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

NS_PER_US: Final = 10**3
NS_PER_MS: Final = 10**6
NS_PER_S: Final = 10**9
S_PER_HOUR: Final = 3600

W_PER_KW: Final = 10**3
W_PER_MW: Final = 10**6
J_PER_KWH: Final = W_PER_KW * S_PER_HOUR

BITS_PER_BYTE: Final = 8
