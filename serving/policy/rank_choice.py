"""Which data-parallel rank a new request goes to."""

from collections.abc import Sequence


def choose_rank(prefix_hit_tokens: Sequence[int], load_tokens: Sequence[int]) -> int:
    """Choose the rank with the longest prefix hit, then the least load, then the lowest number.

    Both arguments have one entry per rank: tokens of the request found in the rank's prefix cache,
    and tokens that its unfinished requests hold or still have to compute.
    """
    assert len(prefix_hit_tokens) == len(load_tokens) > 0
    return min(
        range(len(load_tokens)),
        key=lambda rank: (-prefix_hit_tokens[rank], load_tokens[rank], rank),
    )
