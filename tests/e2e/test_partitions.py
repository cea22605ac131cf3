"""The same greedy text from vLLM on every partition, LNC and placement of experts.

Each case starts an engine with real chips, so the file is slow; what needs no engine is tested in
tests/emulator/ultraserver.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams

from emulator.data import SMALL_MOE_DIR

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

NEW_TOKENS = 24

PARTITIONS: dict[str, dict[str, Any]] = {
    "tp 2, LNC 1": {"chips": 4, "tp": 2, "lnc": 1},
    "tp 4, LNC 8": {"chips": 4, "tp": 4, "lnc": 8},
    "two expert groups": {"chips": 8, "tp": 2, "ep": 4},
    "attention by batch": {"chips": 4, "tp": 4, "attention_split": "batch"},
    "attention by sequence": {"chips": 4, "tp": 4, "lnc": 1, "attention_split": "sequence"},
    "16 chips": {"chips": 16},
    "the whole machine": {"chips": 144, "tp": 4},
}


def prompts() -> list[dict[str, list[int]]]:
    rng = np.random.default_rng(5)
    lengths = rng.integers(3, 150, 24).tolist()
    return [{"prompt_token_ids": rng.integers(300, 1024, n).tolist()} for n in lengths]


@contextmanager
def engine(settings: dict[str, Any], weights: Path = SMALL_MOE_DIR) -> Iterator[LLM]:
    with tempfile.TemporaryDirectory(prefix="e2e-") as scratch, pytest.MonkeyPatch.context() as env:
        env.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        env.setenv("HF_HUB_OFFLINE", "1")
        env.setattr(tempfile, "tempdir", scratch)
        llm = LLM(
            model=str(weights),
            max_model_len=512,
            additional_config={"ultraserve": {"clock": "virtual", **settings}},
        )
        env.setattr(tempfile, "tempdir", None)
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
        assert os.listdir(scratch) == []  # noqa: PTH208  names alone are compared


def texts(llm: LLM, tokens: int = NEW_TOKENS) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one chip alone says."""
    with engine({"chips": 1}) as llm:
        return texts(llm)


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_text_is_that_of_one_chip(name: str, expected: list[list[int]]) -> None:
    with engine(PARTITIONS[name]) as llm:
        found = texts(llm)
        executor = llm.llm_engine.engine_core.engine_core.model_executor
        state = executor.live_engine().state()

    assert found == expected
    assert len({tuple(text) for text in found}) > len(found) // 2, "prompts say different things"
    wanted = PARTITIONS[name]
    assert (state.partition.chips, state.partition.lnc) == (wanted["chips"], wanted.get("lnc", 2))
    assert state.partition.attention_split == wanted.get("attention_split", "heads")


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with routers that prefer some experts: the first feature is never zero."""
    directory = tmp_path_factory.mktemp("skewed") / "checkpoint"
    shutil.copytree(SMALL_MOE_DIR, directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith("mlp.gate.weight"):
            order = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(7))
            tensor[:, 0] += 3.0 / (1.0 + order / 8.0)  # the first experts are liked best
    save_file(tensors, path)
    return directory


def test_a_skewed_router_is_balanced_and_the_text_stays_the_same(skewed: Path) -> None:
    with engine({"chips": 1}, skewed) as llm:
        expected_texts = texts(llm, 80)
    eplb = {"step_interval": 50, "window_size": 50, "num_redundant_experts": 24}
    with engine({"chips": 6, "eplb": {**eplb, "use_async": False}}, skewed) as llm:
        found = texts(llm, 80)
        executor = llm.llm_engine.engine_core.engine_core.model_executor
        balance = executor.live_engine().state().expert_balance

    assert found == expected_texts
    assert balance.rebalances == 1
    assert balance.moved_bytes > 0
    assert balance.imbalance_before is not None
    assert balance.imbalance_after is not None
    print(f"imbalance {balance.imbalance_before:.3f} -> {balance.imbalance_after:.3f}, as counted")
    assert balance.imbalance_after < balance.imbalance_before
