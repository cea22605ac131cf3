"""Choice of a request's data-parallel rank.

A rank's load is the tokens that its requests hold or have yet to compute. The request goes to the
rank with the fewest tokens, its own uncached ones included: a hit of one block decides between
ranks that are level within a block, but never outweighs more waiting than it saves.
"""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


def choose_rank(*, hit_tokens: I64, load_tokens: I64, has_seat: Flags, is_up: Flags) -> int | None:
    """The chosen rank among those up, or None.

    Arguments have an entry per rank: cached tokens of the request; tokens of requests that run or
    go before it; whether it could start at once; whether the rank is up. A rank with a seat comes
    first, since another request's end is further away than any prefill; then the fewest tokens, the
    longest hit, the lowest number.
    """
    ranks = len(is_up)
    assert len(hit_tokens) == len(load_tokens) == len(has_seat) == ranks > 0
    if not is_up.any():
        return None
    # lexsort's last key is its first criterion, and it is stable: ties go to the lowest number.
    order = np.lexsort((-hit_tokens, load_tokens - hit_tokens, ~has_seat, ~is_up))
    return int(order[0])
