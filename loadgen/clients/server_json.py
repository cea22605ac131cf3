"""What is taken of a server's JSON, which may be anything: its numbers' bounds, and how it fails.

A number out of its bounds is an answer that cannot be read: it would spoil sums, or break the run
far from here.
"""

from typing import Annotated, Final

import msgspec

TOKENS_MAX: Final = 1_000_000_000
"""*Assumed*: a thousand times the longest context that is on offer (some 10^6 tokens)."""

TokenCount = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]  # uint32 where gRPC has them

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that cannot be read, the last two for text that is no UTF-8 and for
deep nesting."""
