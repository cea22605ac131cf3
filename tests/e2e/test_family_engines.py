"""Text of every model family through vLLM itself, on chips as Ray actors, is transformers'.

Each on four chips, two a rank, with prefix caching, prompts computed in chunks, and KV pools that
are too small for the load, so that requests are preempted.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from tests.e2e.llm_engine import NEW_TOKENS, running_engine
from tests.emulator.chip.family_checkpoints import SHAPES, make_family_checkpoint
from tests.emulator.chip.stored_checkpoints import in_fp8, in_mxfp4
from tests.emulator.chip.transformers_reference import Reference, excused_texts

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Directories = tuple[Path, Path]


def plainly(directory: Path, root: Path) -> Directories:
    del root
    return directory, directory


def deepseek_fp8(directory: Path, root: Path) -> Directories:
    return in_fp8(directory, root, 24)


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ("llama-scaled-rope", plainly),
        ("qwen3-tied", plainly),
        ("qwen3-moe-between", plainly),
        ("mixtral-plain", plainly),
        ("gpt-oss-plain", in_mxfp4),
        ("deepseek-plain", deepseek_fp8),
        ("kimi-k2-like", plainly),
    ],
)
def test_greedy_text_is_transformers_with_prefixes_chunks_and_preemptions(
    shape: str,
    stored: Callable[[Path, Path], Directories],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family, keys = SHAPES[shape]
    monkeypatch.setitem(SHAPES, shape, (family, {**keys, "vocab_size": 1024}))  # the tokenizer's
    make_family_checkpoint(tmp_path / "model", shape)
    served, plain = stored(tmp_path / "model", tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SMALL_MOE_DIR / name, served)
    rng = np.random.default_rng(3)
    common = rng.integers(300, 1024, 70).tolist()
    prompts = [[*common, *rng.integers(300, 1024, 30).tolist()] for _ in range(10)]
    prompts += rng.integers(300, 1024, (10, 37)).tolist()

    with running_engine(
        served,
        chips=4,
        tp=2,
        max_model_len=256,
        num_gpu_blocks_override=24,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=48,
    ) as engine:
        texts = engine.texts(prompts)

    reference = Reference(plain)
    expected = reference.greedy(prompts, NEW_TOKENS)
    excused = excused_texts(reference, prompts, expected, texts)
    print(f"{shape}: {excused} of {len(prompts)} texts excused")
    assert any(item.replaces_blocks for item in engine.scheduled), "no request was preempted"
    assert any(1 < item.new_tokens <= 48 for item in engine.scheduled), "no prompt came in chunks"
    found = [item for item in engine.scheduled if item.first_position and item.new_tokens > 1]
    assert found, "no prefix was found again, and no chunk followed another"
