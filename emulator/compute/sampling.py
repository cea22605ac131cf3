"""Samples the next token of each request, as vLLM's sampler does, in numpy.

In the order of `vllm.v1.sample.sampler.Sampler`, with raw log-probabilities: grammar bitmask;
log-probabilities; allowed tokens; bad words; early stops; bias; penalties; then the largest logit,
or: temperature, min-p, top-k, top-p and a draw.

A row depends only on its request, its seed and its number of output tokens: not on neighbouring
rows, preemption, or the model's division over chips.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.compute.logits_changes import (
    add_logit_bias,
    apply_penalties,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    mask_bad_words,
    mask_by_grammar,
    mask_early_stops,
    mask_not_allowed,
)
from emulator.compute.logprobs import log_softmax, sampled_logprobs
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import RowLogprobs

TokenIds = NDArray[np.integer]

_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One token per row: `token_ids` [rows] int32. `logprobs` on at least one row's request."""

    token_ids: Int32s
    logprobs: RowLogprobs | None


def sample(
    logits: Float32s,
    specs: Sequence[SamplingSpec],
    prompts: Sequence[TokenIds],
    outputs: Sequence[TokenIds],
    grammar_bitmask: Int32s | None = None,
) -> Sampled:
    """Choose a token for each row of `logits` [rows, vocab] float32, which are kept.

    `prompts` and `outputs`: each row's token ids so far. `grammar_bitmask`: [rows, ceil(vocab /
    32)] int32, low bit first; a row of all ones (-1) is unconstrained.
    """
    assert len(logits) == len(specs) == len(prompts) == len(outputs), "one of each per row"
    if grammar_bitmask is None and all(spec.is_plain_greedy for spec in specs):
        return greedy(logits)
    # An absurd penalty or bias may overflow, a mask may leave nothing: the largest logit decides.
    with np.errstate(all="ignore"):
        return _sample_with_features(logits.copy(), specs, prompts, outputs, grammar_bitmask)


def greedy(logits: Float32s) -> Sampled:
    """The largest of each row of `logits` [rows, vocab]; of equals the first, as in PyTorch."""
    return Sampled(token_ids=logits.argmax(axis=1).astype(np.int32), logprobs=None)


def _sample_with_features(
    logits: Float32s,
    specs: Sequence[SamplingSpec],
    prompts: Sequence[TokenIds],
    outputs: Sequence[TokenIds],
    grammar_bitmask: Int32s | None,
) -> Sampled:
    if grammar_bitmask is not None:
        mask_by_grammar(logits, grammar_bitmask)
    asking = [row for row, spec in enumerate(specs) if spec.wants_logprobs]
    raw_logprobs = log_softmax(logits[asking]) if asking else None  # [asking, vocab]
    constrain(logits, specs, prompts, outputs)
    token_ids = logits.argmax(axis=1).astype(np.int32)
    drawing = [row for row, spec in enumerate(specs) if not spec.is_greedy]
    if drawing:
        token_ids[drawing] = _draw(
            narrow(logits[drawing], [specs[row] for row in drawing]),
            [uniform(specs[row].seed, len(outputs[row])) for row in drawing],
        )
    if raw_logprobs is None:
        return Sampled(token_ids=token_ids, logprobs=None)
    report = sampled_logprobs(raw_logprobs, asking, specs, token_ids)
    return Sampled(token_ids=token_ids, logprobs=report)


def constrain(
    logits: Float32s,
    specs: Sequence[SamplingSpec],
    prompts: Sequence[TokenIds],
    outputs: Sequence[TokenIds],
) -> None:
    """Apply the operations that may change the largest logit, to [rows, vocab] in place."""
    mask_not_allowed(logits, specs)
    mask_bad_words(logits, specs, outputs)
    mask_early_stops(logits, specs, outputs)
    add_logit_bias(logits, specs)
    apply_penalties(logits, specs, prompts, outputs)


def narrow(logits: Float32s, specs: Sequence[SamplingSpec]) -> Float32s:
    """Return logits [rows, vocab] over temperature, without those cut by min-p, top-k and top-p."""
    scaled = logits / np.array([spec.temperature for spec in specs], dtype=np.float32)[:, None]
    keep_min_p(scaled, specs)
    keep_top_k(scaled, specs)
    keep_top_p(scaled, specs)
    return scaled


def uniform(seed: int | None, position: int) -> float:
    """The random number in [0, 1) of a request's output token `position`; counter-based."""
    assert seed is not None, "a random request has a seed"
    key = np.array([seed & _SEED_MASK, position], dtype=np.uint64)
    bits = int(np.random.Philox(key=key).random_raw())
    return (bits >> 11) * 2.0**-53


def _draw(scaled: Float32s, uniforms: Sequence[float]) -> Int64s:
    """Draw each row's token, where its cumulative probability passes its uniform number.

    `scaled` [rows, vocab]. A row without a finite distribution gives its largest logit's token.
    """
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True)).astype(np.float64)
    cumulative = np.cumsum(weights, axis=1)  # [rows, vocab]
    # A number below 1 times the total is below the total in float64 too: some token passes it,
    # and one of weight 0 never does.
    target = np.array(uniforms)[:, None] * cumulative[:, -1:]
    passed = cumulative > target
    return np.where(passed[:, -1], passed.argmax(axis=1), scaled.argmax(axis=1))
