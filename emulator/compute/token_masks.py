"""Masks and biases of single tokens before sampling: grammar, whitelists, bad words.

All change logits [rows, vocab] in place, forbidden ones to minus infinity, in vLLM's order:
grammar, allowed tokens, bad words, stop tokens, bias.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int32s
from emulator.specs.sampling import SamplingSpec

TokenIds = NDArray[np.integer]

_FORBIDDEN = np.float32(-np.inf)
_ALL_ALLOWED = np.int32(-1)


def mask_by_grammar(logits: Float32s, bitmask: Int32s) -> None:
    """Forbid the tokens whose bit is 0; those beyond the last word stay.

    `bitmask` [rows, words] has 32 tokens a word, low bit first.
    """
    rows = np.flatnonzero((bitmask != _ALL_ALLOWED).any(axis=1))
    if not rows.size:
        return
    octets = bitmask[rows].astype("<i4").view(np.uint8)  # [constrained, words * 4]
    covered = min(logits.shape[1], bitmask.shape[1] * 32)
    allowed = np.unpackbits(octets, axis=1, count=covered, bitorder="little")
    constrained = logits[rows, :covered]  # [constrained, covered]
    logits[rows, :covered] = np.where(allowed, constrained, _FORBIDDEN)


def mask_not_allowed(logits: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Forbid every token outside `allowed_token_ids`, in the rows that have them."""
    for row, spec in enumerate(specs):
        if spec.allowed_token_ids is not None:
            allowed = list(spec.allowed_token_ids)
            kept = logits[row, allowed]
            logits[row] = _FORBIDDEN
            logits[row, allowed] = kept


def mask_bad_words(
    logits: Float32s, specs: Sequence[SamplingSpec], outputs: Sequence[TokenIds]
) -> None:
    """Forbid the last token of each bad word whose other tokens end the output so far."""
    for row, spec in enumerate(specs):
        if spec.bad_words:
            longest = max(len(word) for word in spec.bad_words)
            recent = tuple(outputs[row][-longest:].tolist())
            for *beginning, last in spec.bad_words:
                if not beginning or recent[-len(beginning) :] == tuple(beginning):
                    logits[row, last] = _FORBIDDEN


def mask_early_stops(
    logits: Float32s, specs: Sequence[SamplingSpec], outputs: Sequence[TokenIds]
) -> None:
    """Forbid stop tokens before `min_tokens` outputs, unless a grammar allows no others."""
    for row, spec in enumerate(specs):
        if len(outputs[row]) < spec.min_tokens and spec.stop_token_ids:
            stops = list(spec.stop_token_ids)
            before = logits[row, stops]
            logits[row, stops] = _FORBIDDEN
            if spec.uses_grammar and np.isneginf(logits[row]).all():
                logits[row, stops] = before


def add_logit_bias(logits: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Add each row's biases to its logits."""
    for row, spec in enumerate(specs):
        if spec.logit_bias:
            token_ids, biases = zip(*spec.logit_bias, strict=True)
            logits[row, list(token_ids)] += np.array(biases, dtype=np.float32)
