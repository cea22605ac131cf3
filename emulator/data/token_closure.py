"""Which tokens can follow each other freely: any text made of them reads back as those tokens.

A model with random weights puts tokens side by side as no encoder would: "th" and then "e", which
reads back as the one token "the". A load tool that counts tokens by encoding the text it received
would then count wrongly. The tokens of a *closed* set never fuse or split when joined.

Testing pairs is enough. Byte-pair encoding joins the lowest-ranked neighbours first, and what
happens inside one token does not change another until a join crosses a border; the first join to
cross a border in a long text would cross it in that pair alone too. This module must not know what
the tokens are for.
"""

import numpy as np
from tokenizers import Tokenizer

from emulator.arrays import Bools


def closed_token_ids(tokenizer: Tokenizer, candidate_ids: list[int]) -> list[int]:
    """Return the candidates, in id order, that are left when no two of them change if joined.

    The token in most changing pairs is dropped first, and one that changes beside itself before
    any other; the lowest id decides a tie. Takes len(candidate_ids) squared encodings.
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
    """Return where token i and then j read back as anything else: [candidates, candidates] bool."""
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
