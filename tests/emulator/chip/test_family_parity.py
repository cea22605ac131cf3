"""Every model family: what the chips compute is what Hugging Face transformers computes.

The largest difference of each shape, and the number of excused texts, are printed: `pytest -s`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.chip.family_checkpoints import SHAPES, FamilyCheckpoints
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.transformers_reference import Reference, excused_texts

LARGEST_DIFFERENCE = 1e-4
PROMPT_TOKENS = 200
NEW_TOKENS = 64

ReferenceOf = Callable[[str], Reference]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return FamilyCheckpoints(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def reference_of(checkpoints: Mapping[str, Path]) -> ReferenceOf:
    return cache(lambda name: Reference(checkpoints[name]))


@pytest.mark.long
# Four chips that map nothing have the bits of one: the last test here.
@pytest.mark.parametrize(("chips", "tp", "mapped"), [(1, 1, False), (4, 2, True)])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_transformers_within_a_ten_thousandth_of_the_largest(
    name: str,
    chips: int,
    tp: int,
    mapped: bool,
    checkpoints: Mapping[str, Path],
    reference_of: ReferenceOf,
) -> None:
    rng = np.random.default_rng(4)
    vocab = SHAPES[name][1]["vocab_size"]
    prompts = {
        f"prompt-{rank}": rng.integers(0, vocab, PROMPT_TOKENS).tolist()
        for rank in range(chips // tp)
    }
    machine = InProcessChips(checkpoints[name], chips=chips, tp=tp, mapped=mapped)

    serve(machine, prompts, new_tokens=2, chunk_tokens=90)

    largest = 0.0
    for request, prompt in prompts.items():
        expected = reference_of(name).logits(prompt)
        found = machine.rows(request)[:PROMPT_TOKENS]
        differences = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
        largest = max(largest, float(differences.max()))
    print(f"{name}, {chips} chips, tp {tp}: largest relative difference {largest:.1e}")
    assert largest <= LARGEST_DIFFERENCE


CONSTANTS = {
    "norm_topk_prob",
    "rms_norm_eps",
    "rope_parameters",
    "routed_scaling_factor",
    "swiglu_alpha",
    "swiglu_limit",
}
"""Keys of config.json that say nothing of a matrix's shape or of what is divided."""


def _is_divided_as_before(name: str) -> bool:
    """Whether constants alone tell a shape from one of its family that comes before it."""
    names = list(SHAPES)
    family, keys = SHAPES[name]
    others = [SHAPES[each][1] for each in names[: names.index(name)] if SHAPES[each][0] == family]
    differing = [
        {key for key in keys.keys() | other.keys() if keys.get(key) != other.get(key)}
        for other in others
    ]
    return any(each <= CONSTANTS for each in differing)


def test_shapes_that_are_divided_as_none_before_are_everyday_tests() -> None:
    later = [name for name in SHAPES if _is_divided_as_before(name)]

    assert later == [
        "llama-scaled-rope",
        "qwen3-yarn",
        "mixtral-long-rope",
        "deepseek-plain-rope",
        "llama-linear-rope",
        "qwen3-large-eps",
        "mixtral-large-eps",
        "deepseek-two-mscales",
        "deepseek-linear-rope",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("chips", "tp"), [(1, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("name", SHAPES)
def test_greedy_texts_of_twenty_prompts_are_transformers(
    name: str, chips: int, tp: int, checkpoints: Mapping[str, Path], reference_of: ReferenceOf
) -> None:
    rng = np.random.default_rng(20)
    vocab, lengths = SHAPES[name][1]["vocab_size"], (17, 150)
    prompts = {f"prompt-{n}": rng.integers(0, vocab, lengths[n % 2]).tolist() for n in range(20)}
    machine = InProcessChips(checkpoints[name], chips=chips, tp=tp, kv_blocks=400)
    reference = reference_of(name)
    expected = reference.greedy(list(prompts.values()), NEW_TOKENS)

    texts = serve(machine, prompts, new_tokens=NEW_TOKENS, chunk_tokens=100)

    found = [texts[request] for request in prompts]
    excused = excused_texts(reference, list(prompts.values()), expected, found)
    print(f"{name}, {chips} chips, tp {tp}: {excused} of {len(prompts)} texts excused")
    assert {len(text) for text in found} == {NEW_TOKENS}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if _is_divided_as_before(name) else [])
        for name in SHAPES
    ],
)
def test_bits_are_the_same_on_every_partition_and_in_every_batch(
    name: str, checkpoints: Mapping[str, Path]
) -> None:
    rng = np.random.default_rng(5)
    vocab = SHAPES[name][1]["vocab_size"]
    prompts = {f"prompt-{n}": rng.integers(0, vocab, 60 + 45 * n).tolist() for n in range(4)}
    one = InProcessChips(checkpoints[name], chips=1)
    alone = {}
    for request, prompt in prompts.items():
        alone |= serve(one, {request: prompt}, new_tokens=6)

    for chips, tp, chunk_tokens in ((1, 1, 50), (4, 1, 1000), (4, 2, 37)):
        machine = InProcessChips(checkpoints[name], chips=chips, tp=tp)
        assert serve(machine, prompts, new_tokens=6, chunk_tokens=chunk_tokens) == alone
        for request in prompts:
            assert (machine.rows(request) == one.rows(request)).all(), (chips, tp, request)
