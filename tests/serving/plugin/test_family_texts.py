"""Every shape of every model family through vLLM's schedulers has transformers' text.

On 1 chip, on 4, and on 4 with two a rank: with prefixes found again, prompts in chunks, and
requests that lose their KV and are computed anew, all in one load. `tests/e2e/test_family_engines`
has whole engines with chips as processes.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.chip.family_checkpoints import SHAPES, FamilyCheckpoints
from tests.emulator.chip.transformers_reference import Reference, excused_texts
from tests.serving.plugin.core_engine import Engine
from tests.serving.plugin.engine_config import BLOCK_TOKENS
from tests.serving.plugin.lockstep_workload import Arrival

NEW_TOKENS = 64
CHUNK_TOKENS = 48
RANK_REQUESTS = 6  # at once, in blocks for less than four of a hundred tokens
ARGUMENTS = {
    "skip_tokenizer_init": True,
    "max_model_len": 192,
    "max_num_batched_tokens": 64,
    "max_num_seqs": RANK_REQUESTS,
    "long_prefill_token_threshold": CHUNK_TOKENS,
}

Texts = list[list[int]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return FamilyCheckpoints(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def expected(checkpoints: Mapping[str, Path]) -> Callable[[str], tuple[Reference, Texts, Texts]]:
    """By shape: the reference, 20 prompts, half of them with a common prefix, and their texts."""

    @cache
    def made(name: str) -> tuple[Reference, Texts, Texts]:
        reference = Reference(checkpoints[name])
        rng = np.random.default_rng(list(SHAPES).index(name))
        vocab = SHAPES[name][1]["vocab_size"]
        common = rng.integers(0, vocab, 70).tolist()
        prompts = [[*common, *rng.integers(0, vocab, 30).tolist()] for _ in range(10)]
        prompts += rng.integers(0, vocab, (10, 37)).tolist()
        return reference, prompts, reference.greedy(prompts, NEW_TOKENS)

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("chips", "tp"), [(1, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("name", SHAPES)
def test_greedy_texts_are_transformers_with_prefixes_chunks_and_preemptions(
    name: str,
    chips: int,
    tp: int,
    checkpoints: Mapping[str, Path],
    expected: Callable[[str], tuple[Reference, Texts, Texts]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference, prompts, wanted = expected(name)
    blocks = 4 * (100 + NEW_TOKENS) // BLOCK_TOKENS  # less, as one of them is the null block
    arguments = {**ARGUMENTS, "model": str(checkpoints[name])}
    engine = Engine(monkeypatch, chips, blocks=blocks, tp=tp, arguments=arguments)
    for number, prompt in enumerate(prompts):
        arrival = Arrival(
            name=str(number), prompt=tuple(prompt), max_tokens=NEW_TOKENS, ignore_eos=True
        )
        engine.ask(arrival)

    texts = engine.serve({})

    found = [texts[str(number)] for number in range(len(prompts))]
    excused = excused_texts(reference, prompts, wanted, found)
    print(f"{name}, {chips} chips, tp {tp}: {excused} of {len(prompts)} texts excused")
    ranks = [step for steps in engine.heard for step in steps]
    items = [item for step in ranks for item in step.scheduled]
    assert any(item.replaces_blocks for item in items), "no request was preempted"
    ends = [(item, item.first_position + item.new_tokens) for item in items]
    assert any(end < len(prompts[int(item.request_id)]) for item, end in ends), (
        "no prompt came in chunks"
    )
    first = {(id(step), new.request_id) for step in ranks for new in step.new}
    begun = [
        each for step in ranks for each in step.scheduled if (id(step), each.request_id) in first
    ]
    assert any(each.first_position for each in begun), "no prefix was found again"
