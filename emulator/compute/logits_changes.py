"""What changes logits before a token is drawn, in vLLM's order, all in place on [rows, vocab].

Penalties are on tokens that occurred before. For a token with logit x that occurred n times in the
output (vLLM's, OpenAI's):
    x <- x / repetition if x > 0 else x * repetition    when it is in the prompt or the output
    x <- x - frequency * n - presence * (n > 0)

Masks and biases of single tokens: grammar, allowed tokens, bad words, stop tokens, bias. Truncation
of scaled logits: min-p, top-k, top-p, where a row's spec requests it; its arithmetic is float32
where vLLM's is, so that the same tokens stay. What is forbidden or excluded becomes minus infinity.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.specs.sampling import SamplingSpec

TokenIds = NDArray[np.integer]
_FORBIDDEN = np.float32(-np.inf)
_ALL_ALLOWED = np.int32(-1)


def apply_penalties(
    logits: Float32s,
    specs: Sequence[SamplingSpec],
    prompts: Sequence[TokenIds],
    outputs: Sequence[TokenIds],
) -> None:
    """Apply penalties to the logits [rows, vocab] in place, in the rows whose spec has them."""
    rows = [row for row, spec in enumerate(specs) if spec.has_penalties]
    if not rows:
        return
    vocab = logits.shape[1]
    chosen = [specs[row] for row in rows]
    counts = _token_counts([outputs[row] for row in rows], vocab=vocab)  # [penalised, vocab]
    in_output = counts > 0
    seen = in_output | (_token_counts([prompts[row] for row in rows], vocab=vocab) > 0)

    x = logits[rows]  # [penalised, vocab], a copy
    repetition = _column([spec.repetition_penalty for spec in chosen])
    # Multiplying by the reciprocal, as vLLM does, gives its very bits.
    scaled = x * np.where(x > 0, np.float32(1.0) / repetition, repetition)
    x = np.where(seen, scaled, x)
    x -= _column([spec.frequency_penalty for spec in chosen]) * counts.astype(np.float32)
    x -= _column([spec.presence_penalty for spec in chosen]) * in_output
    logits[rows] = x


def _token_counts(tokens: Sequence[TokenIds], *, vocab: int) -> Int64s:
    lengths = [len(sequence) for sequence in tokens]
    first_bin = np.repeat(np.arange(len(tokens)) * vocab, lengths)  # [all tokens]
    bins = first_bin + np.concatenate(tokens)
    counted = np.bincount(bins, minlength=len(tokens) * vocab)
    return counted.reshape(len(tokens), vocab)


def _column(values: Sequence[float]) -> Float32s:
    return np.array(values, dtype=np.float32)[:, None]


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


def keep_min_p(scaled: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Exclude tokens less likely than `min_p` times the most likely one."""
    rows = [row for row, spec in enumerate(specs) if spec.min_p > 0.0]
    if not rows:
        return
    x = scaled[rows]
    probabilities = _softmax(x)
    share = np.array([specs[row].min_p for row in rows], dtype=np.float32)[:, None]
    threshold = probabilities.max(axis=1, keepdims=True) * share
    x[probabilities < threshold] = _FORBIDDEN
    scaled[rows] = x


def keep_top_k(scaled: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Exclude tokens less likely than the k-th most likely one; its equals stay."""
    vocab = scaled.shape[1]
    rows = [row for row, spec in enumerate(specs) if 0 < spec.top_k < vocab]
    if not rows:
        return
    x = scaled[rows]
    kth = np.array([vocab - specs[row].top_k for row in rows])[:, None]  # from the smallest
    parted = np.partition(x, np.unique(kth), axis=1)
    x[x < np.take_along_axis(parted, kth, axis=1)] = _FORBIDDEN
    scaled[rows] = x


def keep_top_p(scaled: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Keep the fewest most likely tokens whose probabilities sum to `top_p`, at least one.

    Of equally likely tokens at the border, the lowest ids stay; vLLM does not define it.
    """
    rows = [row for row, spec in enumerate(specs) if spec.top_p < 1.0]
    if not rows:
        return
    x = scaled[rows]
    ascending = np.sort(x, axis=1)
    below = np.cumsum(_softmax(ascending).astype(np.float64), axis=1).astype(np.float32)
    top_p = np.array([specs[row].top_p for row in rows], dtype=np.float32)[:, None]
    excluded = (below <= np.float32(1.0) - top_p).sum(axis=1, keepdims=True)  # [rows, 1]
    excluded = np.minimum(excluded, x.shape[1] - 1)
    border = np.take_along_axis(ascending, excluded, axis=1)  # the least likely one that stays
    surplus = excluded - (x < border).sum(axis=1, keepdims=True)  # its equals that do not
    x[x < border] = _FORBIDDEN
    if surplus.any():
        equal = x == border
        from_last = np.cumsum(equal[:, ::-1], axis=1)[:, ::-1]  # equals here and to the right
        x[equal & (from_last <= surplus)] = _FORBIDDEN
    scaled[rows] = x


def _softmax(x: Float32s) -> Float32s:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities: Float32s = weights / weights.sum(axis=1, keepdims=True)
    return probabilities
