"""Model flops of a token: products alone, independent of kernels.

As in model-flops utilisation (PaLM, arXiv 2204.02311): a multiply-accumulate is two; recomputing,
padding and folding do not count. They weigh served against trained tokens.
"""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.timing.layer_weights import layer_weights
from emulator.timing.work import FLOPS_PER_MAC

TRAINED_PASSES: Final = 3  # forward, and two products after each in the backward pass


def forward_flops(
    model: ModelSpec, *, new_tokens: int, context_tokens: int = 0, logit_rows: int
) -> float:
    """Flops of `new_tokens` after a cached context, with logits of `logit_rows` of them.

    Raises ConfigError for negative counts, or more rows than tokens.
    """
    if new_tokens < 0 or context_tokens < 0:
        raise ConfigError("tokens", min(new_tokens, context_tokens), "at least 0")
    if not 0 <= logit_rows <= new_tokens:
        raise ConfigError("logit_rows", logit_rows, f"0 to {new_tokens}")
    pairs = new_tokens * context_tokens + new_tokens * (new_tokens + 1) // 2
    windowed = _window_pairs(new_tokens, context_tokens, model.window_tokens)
    attended = model.full_layers * pairs + model.window_layers * windowed
    macs = (
        new_tokens * _layer_macs(model)
        + attended * model.heads * _macs_per_score(model)
        + logit_rows * model.hidden * model.vocab
    )
    return float(FLOPS_PER_MAC * macs)


def served_flops(model: ModelSpec, *, prompt_tokens: int, output_tokens: int) -> float:
    """Flops of a whole request: its prompt, and all output tokens but the last, only sampled one.

    Raises ConfigError for a request without a prompt or output.
    """
    if prompt_tokens < 1 or output_tokens < 1:
        raise ConfigError("tokens", min(prompt_tokens, output_tokens), "at least 1")
    computed = prompt_tokens + output_tokens - 1
    return forward_flops(model, new_tokens=computed, logit_rows=output_tokens)


def training_flops_per_token(model: ModelSpec, sequence_tokens: int) -> float:
    """Flops of a trained token, averaged over its sequence: forward and backward, with logits.

    Raises ConfigError for a sequence without tokens.
    """
    if sequence_tokens < 1:
        raise ConfigError("sequence_tokens", sequence_tokens, "at least 1")
    forward = forward_flops(model, new_tokens=sequence_tokens, logit_rows=sequence_tokens)
    return TRAINED_PASSES * forward / sequence_tokens


def _layer_macs(model: ModelSpec) -> int:
    weights = layer_weights(model)
    attention = weights.query.macs + weights.kv.macs + weights.latent.macs
    routed = weights.router.macs + weights.shared.macs
    routed += model.experts_per_token * weights.expert.macs
    return (
        model.layers * attention
        + model.dense_layers * weights.dense.macs
        + model.moe_layers * routed
    )


def _macs_per_score(model: ModelSpec) -> int:
    if model.latent is None:
        return 2 * model.head_dim
    return model.latent.unfolded_macs_per_score


def _window_pairs(new: int, context: int, window: int) -> int:
    """(query, key) pairs inside a window that counts a token itself; see rank_totals."""
    growing = min(max(window - context, 0), new)
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window
