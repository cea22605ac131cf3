"""A slow count of a backward pass: every product of a forward walk, gradient by gradient.

Walks like `counting_reference`, by layer, token, head and key, without the emulator's formulas.
Flops alone.
"""

from emulator.specs.model import ModelSpec
from tests.emulator.timing.counting_reference import Count


def backward_flops(model: ModelSpec, sequences: list[int]) -> int:
    """Flops of whole sequences of these tokens, all experts on one chip, logits of every token."""
    count = Count()
    for tokens in sequences:
        for layer in range(model.layers):
            _attention(count, model, layer, tokens)
            for _ in range(tokens):
                _feed_forward(count, model, layer)
        for _ in range(tokens):
            _after(count, model.vocab, model.hidden)
    return count.flops


def _after(count: Count, outputs: int, inputs: int) -> None:
    """One row through a matrix, backwards: its gradient, and its part of the matrix's."""
    count.product(inputs, outputs)
    for _ in range(outputs):
        count.product(inputs, 1)


def _attention(count: Count, model: ModelSpec, layer: int, tokens: int) -> None:
    windowed = model.window_tokens > 0 and (layer + 1) % model.full_attention_every != 0
    reach = model.window_tokens if windowed else tokens
    latent, hidden = model.latent, model.hidden
    query, value = model.head_dim, model.head_dim
    if latent is not None:
        query, value = latent.nope_dim + latent.rope_dim, latent.value_dim
    for position in range(tokens):
        for _ in range(model.heads):
            _after(count, hidden, value)  # its part of the output
            for _ in range(min(position + 1, reach)):
                _score(count, query, value)
            if latent is None:
                _after(count, query, hidden)
            else:
                _after(count, query, latent.query_rank)
                _after(count, latent.nope_dim + latent.value_dim, latent.kv_rank)
        if latent is not None:
            _after(count, latent.query_rank, hidden)
            _after(count, latent.kv_rank + latent.rope_dim, hidden)
            continue
        for _ in range(2 * model.kv_heads):
            _after(count, model.head_dim, hidden)


def _score(count: Count, query: int, value: int) -> None:
    """One query and one key of one head."""
    count.product(1, query)  # the score again
    count.product(value, 1)  # the value's gradient
    count.product(1, value)  # the probability's
    count.product(query, 1)  # the query's
    count.product(query, 1)  # the key's


def _feed_forward(count: Count, model: ModelSpec, layer: int) -> None:
    hidden = model.hidden
    widths = [model.dense_intermediate]
    if model.experts and layer >= model.first_dense_layers:
        _after(count, model.experts, hidden)
        widths = [model.expert_intermediate] * (model.experts_per_token + model.shared_experts)
    for width in widths:
        _after(count, width, hidden)
        _after(count, width, hidden)
        _after(count, hidden, width)
