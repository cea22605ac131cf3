"""Log-probabilities of tokens, in the layout that vLLM sends to its clients.

A row per token: the token itself, then the most likely tokens in descending order, and the token's
rank, the number of tokens at least as likely. Ties go to the lowest id, for any k.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import RowLogprobs

_COLUMN_MASK = np.int64(0xFFFFFFFF)


def sort_keys(values: Float32s) -> Int64s:
    """Return keys [rows, columns] that ascend with the values [rows, columns].

    A key packs value and column into 64 bits, the lower column the greater, so every sort gives
    argmax's order. A partial sort of values alone breaks ties differently for another k.
    """
    # Adding zero turns -0.0 into 0.0. A negative float's bits ascend as it falls: flip them.
    bits = (values + np.float32(0.0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    columns = np.arange(values.shape[1], dtype=np.int64)
    return (ordered.astype(np.int64) << 32) | (_COLUMN_MASK - columns)


def key_columns(keys: Int64s) -> Int64s:
    """Return the columns of the keys; same shape."""
    return _COLUMN_MASK - (keys & _COLUMN_MASK)


def log_softmax(logits: Float32s) -> Float32s:
    """Return log-probabilities [rows, vocab]; minus infinity stays."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    logprobs: Float32s = shifted - np.log(total).astype(np.float32)
    return logprobs


def prompt_logprobs(logits: Float32s, next_token_ids: NDArray[np.integer], k: int) -> RowLogprobs:
    """Return the log-probabilities of the following tokens, and of the k most likely ones.

    Row i of `logits` [rows, vocab] predicts `next_token_ids[i]`; k = -1: the whole vocabulary.
    """
    logprobs = log_softmax(logits)
    width = logits.shape[1] if k == -1 else k
    first = next_token_ids.astype(np.int32)[:, None]
    return _report(logprobs, np.concatenate([first, _most_likely(logprobs, width)], axis=1))


def sampled_logprobs(
    logprobs: Float32s, rows: Sequence[int], specs: Sequence[SamplingSpec], token_ids: Int32s
) -> RowLogprobs:
    """Return one row for each of `token_ids` [all rows]; only `rows` requested them.

    `logprobs` is [len(rows), vocab]. The widest request sets the width; padding is token 0 with
    minus infinity, and rank 0 in the other rows.
    """
    vocab = logprobs.shape[1]
    chosen = token_ids[rows][:, None]  # [asking, 1]
    widths = [_reported(specs[row], vocab=vocab) for row in rows]
    asked = np.zeros((len(rows), max(widths)), dtype=np.int32)
    by_rank = [i for i, row in enumerate(rows) if specs[row].logprob_token_ids is None]
    if by_rank:
        k = max(widths[i] for i in by_rank)
        asked[by_rank, :k] = _most_likely(logprobs[by_rank], k)
    for i, row in enumerate(rows):
        named = specs[row].logprob_token_ids
        if named is not None:
            asked[i, : len(named)] = named
    report = _report(logprobs, np.concatenate([chosen, asked], axis=1))
    padding = np.arange(asked.shape[1]) >= np.array(widths)[:, None]  # [asking, width]
    report.token_ids[:, 1:][padding] = 0
    report.logprobs[:, 1:][padding] = -np.inf
    return _spread(report, rows, all_rows=len(token_ids))


def _reported(spec: SamplingSpec, *, vocab: int) -> int:
    if spec.logprob_token_ids is not None:
        return len(spec.logprob_token_ids)
    assert spec.logprobs is not None
    return vocab if spec.logprobs == -1 else spec.logprobs


def _most_likely(logprobs: Float32s, k: int) -> Int32s:
    """Return the ids of the k most likely tokens, most likely first: [rows, k]."""
    keys = sort_keys(logprobs)
    if 0 < k < keys.shape[1]:
        keys = np.partition(keys, keys.shape[1] - k, axis=1)
    top = np.sort(keys[:, keys.shape[1] - k :], axis=1)[:, ::-1]
    return key_columns(top).astype(np.int32)


def _report(logprobs: Float32s, token_ids: Int32s) -> RowLogprobs:
    """Look up the tokens [rows, 1 + k]; ranks the first column."""
    found = np.take_along_axis(logprobs, token_ids, axis=1)
    ranks = (logprobs >= found[:, :1]).sum(axis=1, dtype=np.int32)
    return RowLogprobs(token_ids=token_ids, logprobs=found, ranks=ranks)


def _spread(report: RowLogprobs, rows: Sequence[int], *, all_rows: int) -> RowLogprobs:
    width = report.token_ids.shape[1]
    token_ids = np.zeros((all_rows, width), dtype=np.int32)
    logprobs = np.full((all_rows, width), -np.inf, dtype=np.float32)
    ranks = np.zeros(all_rows, dtype=np.int32)
    token_ids[rows], logprobs[rows], ranks[rows] = report.token_ids, report.logprobs, report.ranks
    return RowLogprobs(token_ids=token_ids, logprobs=logprobs, ranks=ranks)
