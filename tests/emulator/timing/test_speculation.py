import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.models import MODELS
from emulator.timing.speculation import draft_module, draft_passes, verified


def batch() -> StepBatch:
    """Two decodes on rank 0; on rank 1 a decode and a chunk of a prompt."""
    return StepBatch(
        ranks=2,
        rank=np.array([0, 0, 1, 1]),
        new_tokens=np.array([1, 1, 1, 7]),
        context_tokens=np.array([10, 20, 30, 0]),
        logit_rows=np.array([2, 1]),
    )


def test_decodes_are_verified_with_their_guesses_and_prompts_are_left_alone() -> None:
    checked = verified(batch(), 2)

    assert checked.new_tokens.tolist() == [3, 3, 3, 7]
    assert checked.context_tokens.tolist() == [10, 20, 30, 0]
    assert checked.logit_rows.tolist() == [2 + 4, 1 + 2]


def test_the_draft_module_runs_over_all_tokens_and_then_one_guess_after_the_other() -> None:
    first, second, third = draft_passes(batch(), 3)

    assert first.new_tokens.tolist() == [4, 4, 4, 7]
    assert first.logit_rows.tolist() == [2, 1]
    assert second.rank.tolist() == [0, 0, 1]
    assert second.new_tokens.tolist() == [1, 1, 1]
    assert second.context_tokens.tolist() == [14, 24, 34]
    assert third.context_tokens.tolist() == [15, 25, 35]
    assert draft_passes(batch(), 0) == ()


def test_the_draft_module_is_one_layer_with_experts_and_the_heads_of_the_model() -> None:
    module = draft_module(MODELS["deepseek-v3"])

    assert (module.layers, module.moe_layers, module.vocab) == (1, 1, 129_280)
    # 11.5 billion parameters in a layer, beside embedding and LM head; the checkpoint's module has
    # 14 billion with both, and a projection of 2 x 7,168 x 7,168
    own = module.parameters - module.embedding_parameters
    assert own == pytest.approx(11.5e9, rel=0.01)
    assert own + module.embedding_parameters + 2 * 7_168**2 == pytest.approx(14e9, rel=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_draft_module_of_one_layer(name: str) -> None:
    assert draft_module(MODELS[name]).layers == 1
