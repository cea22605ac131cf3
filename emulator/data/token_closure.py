"""Closed token sets: any text made of their tokens encodes back to those tokens.

A model with random weights puts tokens side by side as no encoder would: "th" and then "e", which
encode as the one token "the", so that a load tool that encodes text would count wrongly. Tokens of
a *closed* set never fuse or split when joined.

Testing pairs is enough. Byte-pair encoding joins the lowest-ranked neighbours first, and joins
inside one token do not change another until one crosses a border; the first such join in a long
text would happen in that pair alone too.
"""

import numpy as np
from tokenizers import Tokenizer

from emulator.arrays import Bools


def closed_token_ids(tokenizer: Tokenizer, candidate_ids: list[int]) -> list[int]:
    """Return the candidates, in id order, that remain when no two of them change if joined.

    Drops tokens that change beside themselves first, then the one in most changing pairs; the
    lowest id decides a tie. Takes len(candidate_ids) squared encodings.
    """
    changes = changing_pairs(tokenizer, candidate_ids)  # [candidates, candidates]
    kept = np.ones(len(candidate_ids), dtype=np.bool_)  # [candidates]
    doomed = changes.diagonal() * 2 * len(candidate_ids)  # more than any count of pairs
    while True:
        left = changes & kept[:, None] & kept[None, :]
        pairs_of = left.sum(axis=0) + left.sum(axis=1) + doomed * kept
        if not pairs_of.any():
            break
        kept[int(pairs_of.argmax())] = False
    return [token_id for token_id, keep in zip(candidate_ids, kept, strict=True) if keep]


def changing_pairs(tokenizer: Tokenizer, candidate_ids: list[int]) -> Bools:
    """Pairs that encode otherwise: [candidates, candidates] bool, token i and then j."""
    texts = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in candidate_ids]
    changes = np.empty((len(texts), len(texts)), dtype=np.bool_)
    for row, (first_id, first_text) in enumerate(zip(candidate_ids, texts, strict=True)):
        encodings = tokenizer.encode_batch_fast(
            [first_text + second_text for second_text in texts], add_special_tokens=False
        )
        changes[row] = [
            encoding.ids != [first_id, second_id]
            for encoding, second_id in zip(encodings, candidate_ids, strict=True)
        ]
    return changes
