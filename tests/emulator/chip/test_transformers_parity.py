"""What the chips compute is what Hugging Face transformers computes.

The largest difference of each shape, and the number of excused texts, are printed: `pytest -s`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.random_checkpoints import SHAPES
from tests.emulator.chip.transformers_reference import Reference, excused_texts

LARGEST_DIFFERENCE = 1e-4
PROMPT_TOKENS = 400
NEW_TOKENS = 64

ReferenceOf = Callable[[str], Reference]


@pytest.fixture(scope="module")
def reference_of(small_checkpoints: Mapping[str, Path]) -> ReferenceOf:
    return cache(lambda name: Reference(small_checkpoints[name]))


def twenty_prompts(name: str) -> dict[str, list[int]]:
    rng = np.random.default_rng(20)
    lengths = (17, 230)
    drawn = [rng.integers(0, SHAPES[name]["vocab_size"], lengths[i % 2]) for i in range(20)]
    return {f"prompt-{index}": prompt.tolist() for index, prompt in enumerate(drawn)}


@pytest.fixture(scope="module")
def texts_of(reference_of: ReferenceOf) -> Callable[[str], list[list[int]]]:
    return cache(
        lambda name: reference_of(name).greedy(list(twenty_prompts(name).values()), NEW_TOKENS)
    )


@pytest.mark.long
@pytest.mark.parametrize("chips", [1, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_transformers_within_a_ten_thousandth_of_the_largest(
    name: str, chips: int, small_checkpoints: Mapping[str, Path], reference_of: ReferenceOf
) -> None:
    rng = np.random.default_rng(4)
    prompts = {
        f"prompt-{rank}": rng.integers(0, SHAPES[name]["vocab_size"], PROMPT_TOKENS).tolist()
        for rank in range(chips)
    }
    machine = InProcessChips(small_checkpoints[name], chips=chips)

    serve(machine, prompts, new_tokens=1)

    largest = 0.0
    for request, prompt in prompts.items():
        expected = reference_of(name).logits(prompt)
        found = machine.rows(request)
        assert found.shape == (PROMPT_TOKENS, SHAPES[name]["vocab_size"])
        differences = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
        largest = max(largest, float(differences.max()))
    print(f"{name}, {chips} chips: largest relative difference of logits {largest:.1e}")
    assert largest <= LARGEST_DIFFERENCE


@pytest.mark.slow
def test_logits_hold_at_the_end_of_a_long_prompt(
    small_checkpoints: Mapping[str, Path], reference_of: ReferenceOf
) -> None:
    prompt = np.random.default_rng(6).integers(0, 256, 2_000).tolist()
    machine = InProcessChips(small_checkpoints["one_kv_head"], chips=1)

    serve(machine, {"long": prompt}, new_tokens=1, chunk_tokens=512)

    expected = reference_of("one_kv_head").logits(prompt)
    differences = np.abs(machine.rows("long") - expected).max(axis=1)
    largest = float((differences / np.abs(expected).max(axis=1)).max())
    print(f"one_kv_head, 2,000 tokens: largest relative difference of logits {largest:.1e}")
    assert largest <= LARGEST_DIFFERENCE


@pytest.mark.slow
@pytest.mark.parametrize("chips", [1, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_greedy_texts_of_twenty_prompts_are_transformers(
    name: str,
    chips: int,
    small_checkpoints: Mapping[str, Path],
    reference_of: ReferenceOf,
    texts_of: Callable[[str], list[list[int]]],
) -> None:
    prompts = twenty_prompts(name)
    machine = InProcessChips(small_checkpoints[name], chips=chips, kv_blocks=400)
    expected = texts_of(name)

    texts = serve(machine, prompts, new_tokens=NEW_TOKENS, chunk_tokens=100)

    found = [texts[request] for request in prompts]
    excused = excused_texts(reference_of(name), list(prompts.values()), expected, found)
    print(f"{name}, {chips} chips: {excused} of {len(prompts)} texts excused")
    assert {len(text) for text in found} == {NEW_TOKENS}


@pytest.mark.slow
def test_the_texts_that_are_compared_are_varied(
    texts_of: Callable[[str], list[list[int]]],
) -> None:
    for name in SHAPES:
        assert len({tuple(text) for text in texts_of(name)}) == 20
        assert len(set().union(*texts_of(name))) >= 50


class TestTheComparison:
    """What excuses a text excuses nothing else."""

    PROMPT = (5, 6, 7)

    def test_equal_texts_need_no_excuse(self, reference_of: ReferenceOf) -> None:
        reference = reference_of("tied")
        assert excused_texts(reference, [self.PROMPT], [[1, 2]], [[1, 2]]) == 0

    @pytest.mark.parametrize("text", [[1, 3], [2, 2], [1], [1, 2, 3]])
    def test_another_text_is_an_error(self, text: list[int], reference_of: ReferenceOf) -> None:
        with pytest.raises(AssertionError):
            excused_texts(reference_of("tied"), [self.PROMPT], [[1, 2]], [text])

    def test_a_close_call_excuses_it(
        self, reference_of: ReferenceOf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        reference = reference_of("tied")
        monkeypatch.setattr(reference, "is_close_call", lambda ids: asked.append(ids) or True)

        assert excused_texts(reference, [self.PROMPT], [[1, 2, 9]], [[1, 3, 9]]) == 1
        assert asked == [[*self.PROMPT, 1]]

    def test_a_close_call_is_one_of_logits_or_of_routers(
        self, reference_of: ReferenceOf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = "tests.emulator.chip.transformers_reference.CLOSE_CALL"
        reference = reference_of("tied")
        assert not reference.is_close_call(self.PROMPT)

        monkeypatch.setattr(module, 1.0)
        assert reference.is_close_call(self.PROMPT)
