import warnings

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS
from emulator.timing.model_flops import (
    forward_flops,
    served_flops,
    training_flops_per_token,
)
from tests.emulator.specs.tiny_model import TINY

SHAPE = {
    "layers": 2,
    "hidden": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "vocab": 96,
    "max_context_tokens": 64,
    "tied_embeddings": False,
}
DENSE = ModelSpec(name="d", **SHAPE, query_key_norms=False, dense_intermediate=48, source="a test")
ROUTED = ModelSpec(
    name="r", **SHAPE, experts=4, experts_per_token=2, expert_intermediate=24, source="a test"
)
CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "attn_implementation": "eager",
}


def test_the_flops_of_a_tiny_models_second_token_are_those_counted_by_hand() -> None:
    # of each of 2 layers: queries and output 4x4 each, keys and values 2x4 each, router 4x4, two
    # experts of three 3x4 matrices; two heads see two keys of 2, and weigh two values of 2
    layer = 16 + 16 + 8 + 8 + 16 + 2 * 36 + 2 * 2 * 4

    done = forward_flops(TINY, new_tokens=1, context_tokens=1, logit_rows=1)

    assert done == 2 * (2 * layer + 10 * 4)


def counted_by_torch(model: object, tokens: int) -> int:
    """Flops of a forward and a backward pass over one sequence, as PyTorch counts them."""
    ids = torch.zeros((1, tokens), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids).logits.logsumexp(-1).sum().backward()  # type: ignore[operator]
    return int(counter.get_total_flops())


def with_masked_scores(model: ModelSpec, tokens: int) -> float:
    """Ours, and the scores that eager attention makes and then masks: three times two products."""
    masked = tokens * tokens - tokens * (tokens + 1) // 2
    scores = model.layers * model.heads * 2 * model.head_dim * masked
    return tokens * training_flops_per_token(model, tokens) + 3 * 2 * scores


@pytest.mark.parametrize("tokens", [1, 10])
def test_training_a_dense_model_takes_the_flops_that_pytorch_counts(tokens: int) -> None:
    dense = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))

    assert counted_by_torch(dense, tokens) == with_masked_scores(DENSE, tokens)


@pytest.mark.parametrize("tokens", [1, 10])
def test_training_a_model_with_experts_takes_the_flops_that_pytorch_counts(tokens: int) -> None:
    config = transformers.Qwen3MoeConfig(
        **CONFIG,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        experts_implementation="eager",  # the grouped product is one that PyTorch does not count
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        routed = transformers.Qwen3MoeForCausalLM(config)

    assert counted_by_torch(routed, tokens) == with_masked_scores(ROUTED, tokens)


@given(
    name=st.sampled_from(sorted(MODELS)), prompt=st.integers(1, 3_000), output=st.integers(1, 300)
)
def test_a_request_is_worth_the_same_at_once_and_token_by_token(
    name: str, prompt: int, output: int
) -> None:
    model = MODELS[name]
    prefill = forward_flops(model, new_tokens=prompt, logit_rows=1)
    decodes = (
        forward_flops(model, new_tokens=1, context_tokens=prompt + step, logit_rows=1)
        for step in range(output - 1)
    )

    by_token = prefill + sum(decodes)

    assert served_flops(model, prompt_tokens=prompt, output_tokens=output) == pytest.approx(
        by_token
    )


@given(name=st.sampled_from(sorted(MODELS)), tokens=st.integers(1, 8_192))
def test_a_trained_token_is_worth_at_least_six_flops_a_parameter_that_it_multiplies(
    name: str, tokens: int
) -> None:
    model = MODELS[name]
    multiplied = model.active_parameters - model.embedding_parameters + model.vocab * model.hidden

    # norms, biases and sinks are parameters too, and multiply nothing: less than a part in 1,000
    assert training_flops_per_token(model, tokens) > 6 * 0.999 * multiplied
    assert training_flops_per_token(model, tokens + 1) >= training_flops_per_token(model, tokens)


@pytest.mark.parametrize(
    "count",
    [
        lambda: forward_flops(TINY, new_tokens=-1, logit_rows=0),
        lambda: forward_flops(TINY, new_tokens=1, logit_rows=2),
        lambda: served_flops(TINY, prompt_tokens=0, output_tokens=1),
        lambda: training_flops_per_token(TINY, 0),
    ],
)
def test_counts_that_make_no_pass_are_refused(count: object) -> None:
    with pytest.raises(ConfigError):
        count()  # type: ignore[operator]
