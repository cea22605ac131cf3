"""Which data-parallel rank a request goes to.

A rank's load is the tokens that its requests hold or have yet to compute. A token found in a rank's
prefix cache need not be computed there, so it weighs as much as one token of load: the rank is
taken that would have the fewest tokens with the request on it. A hit of one block therefore turns
a choice between ranks that are level within a block, and does not send everything to one rank that
has more waiting than the hit saves.
"""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


def choose_rank(*, hit_tokens: I64, load_tokens: I64, has_seat: Flags, is_up: Flags) -> int | None:
    """Choose among the ranks that are up; None when there is none.

    All arguments have one entry per rank: tokens of the request in the rank's prefix cache; tokens
    of the rank's requests that run or go before this one; whether it may start to run there without
    another one's end; whether the rank is up. A rank with a seat comes first, because the end of
    another request is further away than any prefill; then the fewest tokens; then the longest hit,
    which is the least to compute; then the lowest number.
    """
    ranks = len(is_up)
    assert len(hit_tokens) == len(load_tokens) == len(has_seat) == ranks > 0
    if not is_up.any():
        return None
    # lexsort's last key is its first criterion, and it is stable: ties go to the lowest number.
    order = np.lexsort((-hit_tokens, load_tokens - hit_tokens, ~has_seat, ~is_up))
    return int(order[0])
