"""Text of every model family through vLLM itself, on chips as Ray actors, is transformers'.

With prefix caching, prompts computed in chunks, and KV pools that are too small for the load, so
that requests are preempted: a shape of each family on four chips, two a rank; and, of families
whose layers are one compiled call, also on one chip and on four ranks. Every shape on all three is
in `tests/serving/plugin/test_family_texts.py`, on chips in one process.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from tests.e2e.llm_engine import NEW_TOKENS, running_engine
from tests.emulator.chip.family_checkpoints import make_family_checkpoint
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
    ("shape", "stored", "chips", "tp"),
    [
        ("llama-scaled-rope", plainly, 4, 2),
        ("qwen3-tied", plainly, 4, 2),
        ("qwen3-moe-between", plainly, 4, 2),
        ("qwen3-moe-one-of-many", plainly, 4, 1),
        ("qwen3-moe-large-eps", plainly, 1, 1),
        ("mixtral-plain", plainly, 4, 2),
        ("mixtral-four-of-eight", plainly, 4, 1),
        ("gpt-oss-plain", in_mxfp4, 4, 2),
        ("gpt-oss-four-of-sixteen", plainly, 4, 1),
        ("gpt-oss-other-settings", plainly, 1, 1),
        ("deepseek-plain", deepseek_fp8, 4, 2),
        ("kimi-k2-like", plainly, 4, 2),
    ],
)
def test_greedy_text_is_transformers_with_prefixes_chunks_and_preemptions(
    shape: str,
    stored: Callable[[Path, Path], Directories],
    chips: int,
    tp: int,
    tmp_path: Path,
) -> None:
    make_family_checkpoint(tmp_path / "model", shape, vocab_size=1024)  # the tokenizer's
    served, plain = stored(tmp_path / "model", tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SMALL_MOE_DIR / name, served)
    rng = np.random.default_rng(3)
    common = rng.integers(300, 1024, 70).tolist()
    prompts = [[*common, *rng.integers(300, 1024, 30).tolist()] for _ in range(10)]
    prompts += rng.integers(300, 1024, (10, 37)).tolist()

    with running_engine(
        served,
        chips=chips,
        tp=tp,
        max_model_len=256,
        num_gpu_blocks_override=16,
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
