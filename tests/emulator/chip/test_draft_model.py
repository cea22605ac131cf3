"""A small model that drafts for the served one: guesses are its own text, texts are as without."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.compute.checkpoint import read_architecture
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.family_checkpoints import FamilyCheckpoints
from tests.emulator.chip.in_process import GREEDY, InProcessChips, serve
from tests.emulator.chip.served_drafts import RANDOM, cut, draft_texts
from tests.emulator.chip.transformers_reference import Reference, excused_texts

SERVED = "qwen3-moe-first-dense"
TOKENS = 24
PROMPTS = {
    f"prompt-{n}": np.random.default_rng(n).integers(0, 256, 20 + 19 * n).tolist() for n in range(4)
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return FamilyCheckpoints(tmp_path_factory.mktemp("families"))


@pytest.mark.long
@pytest.mark.parametrize("drafter", ["llama-tied", "gpt-oss-short-window", "deepseek-plain"])
def test_guesses_are_the_greedy_text_of_transformers_after_each_text_so_far(
    drafter: str, checkpoints: Mapping[str, Path]
) -> None:
    machine = InProcessChips(
        checkpoints[SERVED], chips=2, draft_tokens=3, draft_dir=checkpoints[drafter]
    )

    texts, drafts = draft_texts(machine, PROMPTS, new_tokens=5, chunk_tokens=30)

    reference = Reference(checkpoints[drafter])
    for name, prompt in PROMPTS.items():
        sofar = [[*prompt, *texts[name][:length]] for length in drafts[name]]
        expected = [reference.greedy([text], 3)[0] for text in sofar]
        excused_texts(reference, sofar, expected, list(drafts[name].values()))


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize(("chips", "tp"), [(1, 1), (4, 2)])
class TestTexts:
    @pytest.mark.long
    def test_a_model_that_drafts_for_itself_is_always_right(
        self,
        chips: int,
        tp: int,
        sampling: SamplingSpec,
        checkpoints: Mapping[str, Path],
    ) -> None:
        directory = checkpoints[SERVED]
        plain = InProcessChips(directory, chips=chips, tp=tp)
        expected = serve(plain, PROMPTS, new_tokens=TOKENS, sampling=sampling)

        machine = InProcessChips(directory, chips=chips, tp=tp, draft_tokens=3, draft_dir=directory)
        texts, drafts = draft_texts(
            machine, PROMPTS, new_tokens=TOKENS, chunk_tokens=50, sampling=sampling
        )

        assert cut(texts, TOKENS) == expected
        steps = {len(of_request) for of_request in drafts.values()}
        assert steps == {1 + -(-(TOKENS - 1) // 4)}

    @pytest.mark.long
    def test_another_model_s_drafts_change_no_text(
        self,
        chips: int,
        tp: int,
        sampling: SamplingSpec,
        checkpoints: Mapping[str, Path],
    ) -> None:
        plain = InProcessChips(checkpoints[SERVED], chips=chips, tp=tp)
        expected = serve(plain, PROMPTS, new_tokens=TOKENS, sampling=sampling)

        drafter = checkpoints["llama-plain"]
        machine = InProcessChips(
            checkpoints[SERVED], chips=chips, tp=tp, draft_tokens=2, draft_dir=drafter
        )
        texts, _ = draft_texts(machine, PROMPTS, new_tokens=TOKENS, sampling=sampling)

        assert cut(texts, TOKENS) == expected


def test_a_copied_block_is_copied_for_the_drafting_model_too(
    checkpoints: Mapping[str, Path],
) -> None:
    directory = checkpoints[SERVED]
    prompt = PROMPTS["prompt-1"][:32]  # two blocks
    machine = InProcessChips(directory, chips=1, draft_tokens=2, draft_dir=directory)

    def step(name: str, blocks: list[int], first: int, copies: list[tuple[int, int]]) -> list[int]:
        new = NewRequest(
            request_id=name,
            token_ids=prompt,
            prompt_tokens=len(prompt),
            sampling=GREEDY,
            block_ids=blocks,
        )
        scheduled = Scheduled(request_id=name, first_position=first, new_tokens=32 - first)
        rank_step = RankStep(
            rank=0, new=[new], scheduled=[scheduled], finished=[], block_copies=copies
        )
        return machine.step([rank_step])[0].drafts[name]

    first = step("a", [1, 2, 3], 0, [])

    # Of its second block, the other request has all but the last position by a copy.
    assert step("b", [1, 5, 6], 31, [(2, 5)]) == first


def test_kv_of_every_family_has_its_own_shape(checkpoints: Mapping[str, Path]) -> None:
    drafter = checkpoints["deepseek-plain"]
    machine = InProcessChips(checkpoints[SERVED], chips=2, tp=2, draft_tokens=1, draft_dir=drafter)

    lead, follower = machine.chips
    assert follower._draft_model is None
    assert lead._draft_model is not None
    latent = read_architecture(drafter).latent
    assert latent is not None
    keys = lead._draft_model._kv._keys  # [layers, blocks, kv_heads, key_dim, block_tokens]
    assert (keys.shape[0], *keys.shape[2:4]) == (3, 1, latent.cached_width)
