"""Drafts through vLLM's own flag, on chips as Ray actors: texts are transformers', in fewer steps.

Two engines, each started once: a layer of multi-token prediction on four chips, two a rank; a small
model that drafts for another, on two.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

from emulator.data import SMALL_MOE_DIR
from emulator.data.make_small_moe import make_weights
from serving.plugin.requests import sampling_spec
from tests.e2e.llm_engine import Engine, running_engine
from tests.emulator.chip.draft_layer_checkpoint import make_draft_checkpoint
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.transformers_reference import Reference, excused_texts

# Every day chips of one process draft: tests/emulator/chip/test_drafts_in_fleet.py.
pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
RANDOM = [
    SamplingParams(temperature=0.8, top_p=0.9, seed=seed, max_tokens=TOKENS, ignore_eos=True)
    for seed in range(6)
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(8)
    start = rng.integers(300, 1024, 40).tolist()
    return [[*start, *rng.integers(300, 1024, 5 + 3 * n).tolist()] for n in range(6)]


def perturbed(checkpoint: Path) -> Path:
    """The same model a little off, beside it: its choice is often the model's, and not always."""
    directory = checkpoint.with_name("perturbed")
    shutil.copytree(checkpoint, directory)
    path, generator = directory / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(path)
    for tensor in tensors.values():
        noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        tensor.add_(0.01 * noise * tensor.std())
    save_file(tensors, path, {"format": "pt"})
    return directory


def with_tokenizer(directory: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SMALL_MOE_DIR / name, directory)
    return directory


def assert_texts(checkpoint: Path, engine: Engine, prompts: list[list[int]]) -> None:
    """Greedy texts are transformers', random ones those of chips without drafts."""
    reference = Reference(checkpoint)
    expected = reference.greedy(prompts, TOKENS)
    for found in (engine.texts(prompts, GREEDY), engine.texts(prompts, GREEDY)):
        excused_texts(reference, prompts, expected, found)  # computed, then with prefixes found
    plain = InProcessChips(checkpoint, chips=1)
    for prompt, params, text in zip(prompts, RANDOM, engine.texts(prompts, RANDOM), strict=True):
        sampling = sampling_spec(params, "r", 0)
        assert serve(plain, {str(params.seed): prompt}, new_tokens=TOKENS, sampling=sampling) == {
            str(params.seed): text
        }


def assert_figures(engine: Engine) -> None:
    """vLLM's metrics of drafts are those of the steps that the chips were given."""
    found: dict[str, Any] = {}
    for metric in engine.llm.get_metrics():
        value = getattr(metric, "value", None)
        found[metric.name] = metric.values if value is None and hasattr(metric, "values") else value
    drafted = [item for item in engine.scheduled if item.draft_tokens]
    assert found["vllm:spec_decode_num_drafts"] == len(drafted) > 0
    tokens = sum(len(item.draft_tokens) for item in drafted)
    assert found["vllm:spec_decode_num_draft_tokens"] == tokens
    accepted = found["vllm:spec_decode_num_accepted_tokens"]
    assert 0 < accepted < tokens
    assert sum(found["vllm:spec_decode_num_accepted_tokens_per_pos"]) == accepted
    print(f"{accepted} of {tokens} drafts were right")


@pytest.fixture(scope="module")
def drafting_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "mtp"
    make_draft_checkpoint(directory, {"vocab_size": 1024}, own_ends=False, agrees=True)
    return with_tokenizer(directory)


# Before the engines of the classes: a process has one session of Ray at a time.
@pytest.mark.timeout(900)
def test_the_whole_machine_drafts_with_the_same_texts(
    drafting_checkpoint: Path, prompts: list[list[int]]
) -> None:
    drafts = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
    with running_engine(drafting_checkpoint, chips=144, tp=4, speculative_config=drafts) as engine:
        found = engine.texts(prompts, GREEDY)
        assert any(item.draft_tokens for item in engine.scheduled)

    reference = Reference(drafting_checkpoint)
    excused_texts(reference, prompts, reference.greedy(prompts, TOKENS), found)


class TestMultiTokenPrediction:
    @pytest.fixture(scope="class")
    def engine(self, drafting_checkpoint: Path) -> Iterator[Engine]:
        drafts = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
        with running_engine(
            drafting_checkpoint, chips=4, tp=2, speculative_config=drafts, disable_log_stats=False
        ) as engine:
            yield engine

    def test_texts_are_those_without_drafts(
        self, engine: Engine, drafting_checkpoint: Path, prompts: list[list[int]]
    ) -> None:
        assert_texts(drafting_checkpoint, engine, prompts)

    def test_vllm_s_metrics_count_the_drafts(self, engine: Engine) -> None:
        assert_figures(engine)


class TestDraftModel:
    @pytest.fixture(scope="class")
    def checkpoint(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The small MoE with weights of another seed than the bundled one's."""
        directory = tmp_path_factory.mktemp("model") / "small-moe-again"
        shutil.copytree(SMALL_MOE_DIR, directory)
        (directory / "model.safetensors").write_bytes(make_weights(SMALL_MOE_DIR, seed=7))
        return directory

    @pytest.fixture(scope="class")
    def engine(self, checkpoint: Path) -> Iterator[Engine]:
        drafts = {
            "method": "draft_model",
            "model": str(perturbed(checkpoint)),
            "num_speculative_tokens": 3,
        }
        with running_engine(
            checkpoint, chips=2, speculative_config=drafts, disable_log_stats=False
        ) as engine:
            yield engine

    def test_texts_are_those_without_drafts(
        self, engine: Engine, checkpoint: Path, prompts: list[list[int]]
    ) -> None:
        assert_texts(checkpoint, engine, prompts)

    def test_vllm_s_metrics_count_the_drafts(self, engine: Engine) -> None:
        assert_figures(engine)
