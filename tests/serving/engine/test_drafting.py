"""What may draft for a served checkpoint; all else is refused in one line that says why."""

import json
import shutil
from pathlib import Path

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from serving.engine.deployment import resolve_deployment, with_drafts
from serving.engine.drafting import DraftBy
from serving.errors import UnsupportedFlag
from serving.settings import Settings


@pytest.fixture(scope="module")
def other_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config.json alone: with another vocabulary its tensors are misshapen."""
    directory = tmp_path_factory.mktemp("model") / "other"
    shutil.copytree(SMALL_MOE_DIR, directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": 512}))
    return directory


@pytest.mark.parametrize(
    ("method", "model", "text"),
    [
        ("eagle", None, "method eagle: expected method ngram, mtp, draft_model"),
        ("mtp", None, "method mtp: expected another one: .* Qwen3MoeForCausalLM with num_nextn"),
        ("deepseek_mtp", None, "method mtp: expected another one: .* Qwen3MoeForCausalLM"),
        ("mtp", "/elsewhere", "model /elsewhere: expected no model: mtp is a layer of"),
        ("draft_model", None, "model None: expected the directory of a checkpoint with the same"),
        ("draft_model", "/none", "model /none: expected the directory of a checkpoint"),
        ("draft_model", "{tmp}", "expected one that is computed: .*no config.json"),
        ("draft_model", "{other}", r"expected one that is computed: .* has shape \[1024, 112\]"),
    ],
)
def test_what_cannot_draft_is_refused_in_one_line(
    method: str, model: str | None, text: str, tmp_path: Path, other_vocabulary: Path
) -> None:
    deployment = resolve_deployment(Settings(), SMALL_MOE_DIR)
    given = model and model.format(tmp=tmp_path, other=other_vocabulary)

    with pytest.raises(ConfigError, match=f"^speculative_config=.*{text}") as raised:
        with_drafts(deployment, method, 2, given)

    assert "\n" not in str(raised.value)


def test_drafts_of_synthetic_tokens_are_refused() -> None:
    deployment = resolve_deployment(Settings(computes=False), SMALL_MOE_DIR)

    with pytest.raises(UnsupportedFlag, match=r"^--speculative-config: made-up tokens follow no"):
        with_drafts(deployment, "ngram", 2, None)


def test_a_checkpoint_may_draft_for_itself() -> None:
    deployment = resolve_deployment(Settings(chips=2, tp=2), SMALL_MOE_DIR)
    drafting = with_drafts(deployment, "draft_model", 2, str(SMALL_MOE_DIR))

    assert drafting.drafting is not None
    assert drafting.drafting.method is DraftBy.DRAFT_MODEL
    assert drafting.drafting.model == deployment.weights
    assert drafting.chip_drafts == 2
    assert drafting.draft_dir == SMALL_MOE_DIR
    assert drafting.machine(0.9).cost_model.draft_tokens == 2


@pytest.mark.parametrize("tokens", [0, 17])
def test_a_number_of_guesses_beyond_what_is_timed_is_refused(tokens: int) -> None:
    deployment = resolve_deployment(Settings(), SMALL_MOE_DIR)
    drafting = with_drafts(deployment, "ngram", tokens, None)

    if tokens == 17:
        with pytest.raises(ConfigError, match=r"^draft_tokens=17: expected from 0 to 16"):
            drafting.machine(0.9)
    else:
        assert drafting.chip_drafts == 0
