"""The bundled model's greedy text is the same on every partition and every placement.

Chips in this process; what live chips compute is held against these in test_fleet.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.specs.placement import ExpertPlacement
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.placements import shuffled_placement

pytestmark = pytest.mark.long

LAYERS, EXPERTS, VOCAB = 4, 144, 1024
NEW_TOKENS = 12
KV_BLOCKS = 32

Texts = Mapping[str, list[int]]


def prompts(count: int = 6) -> dict[str, list[int]]:
    """Of 2 to some 200 tokens; more of them than the smaller machines have ranks."""
    rng = np.random.default_rng(7)
    lengths = [2 + (41 * index) % 197 for index in range(count)]
    return {
        f"request-{index}": rng.integers(300, VOCAB, length).tolist()
        for index, length in enumerate(lengths)
    }


def texts_on(
    chips: int, tp: int = 1, placement: ExpertPlacement | None = None, count: int = 6
) -> Texts:
    machine = InProcessChips(
        SMALL_MOE_DIR, chips=chips, tp=tp, placement=placement, kv_blocks=KV_BLOCKS, block_tokens=32
    )
    return serve(machine, prompts(count), new_tokens=NEW_TOKENS, chunk_tokens=64)


def shuffled(chips: int, ep: int, seed: int) -> ExpertPlacement:
    """With at least one slot more on each chip than its share."""
    return shuffled_placement(
        layers=LAYERS, experts=EXPERTS, chips=chips, ep=ep, slots=1 + -(-EXPERTS // ep), seed=seed
    )


@pytest.fixture(scope="module")
def text_of_one_chip() -> Texts:
    texts = texts_on(1)
    assert len({tuple(text) for text in texts.values()}) == len(texts)  # they tell errors apart
    return texts


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("chips", [1, 2, 4, 16])
def test_on_any_number_of_chips_and_of_chips_a_rank(
    chips: int, tp: int, text_of_one_chip: Texts
) -> None:
    if chips % tp == 0:
        assert texts_on(chips, tp) == text_of_one_chip


@pytest.mark.parametrize(
    ("chips", "tp", "ep"), [(1, 1, 1), (2, 1, 2), (4, 2, 4), (4, 2, 2), (4, 4, 1), (16, 4, 8)]
)
def test_wherever_experts_lie(chips: int, tp: int, ep: int, text_of_one_chip: Texts) -> None:
    assert texts_on(chips, tp, shuffled(chips, ep, seed=chips + ep)) == text_of_one_chip


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_on_the_whole_ultraserver(tp: int) -> None:
    """A request on every rank; one expert to a chip, and then two groups with copies."""
    ranks = 144 // tp
    expected = in_turns(ranks)

    assert texts_on(144, tp, count=ranks) == expected
    assert texts_on(144, tp, shuffled(144, 72, seed=tp), count=ranks) == expected


def in_turns(count: int) -> Texts:
    """The texts of one chip, whose pool holds a few requests at a time."""
    machine = InProcessChips(SMALL_MOE_DIR, chips=1, kv_blocks=KV_BLOCKS, block_tokens=32)
    texts: dict[str, list[int]] = {}
    for name, prompt in prompts(count).items():
        texts |= serve(machine, {name: prompt}, new_tokens=NEW_TOKENS, chunk_tokens=64)
    return texts
