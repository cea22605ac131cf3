"""Drafts that a step verifies: texts are those without drafts, in fewer steps."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, InProcessChips, serve

TOKENS = 24
PROMPT = list(range(10, 40))
BLOCKS = list(range(1, 9))
RANDOM = SamplingSpec(temperature=0.9, top_p=0.95, seed=5)

Drafter = Callable[[list[int]], list[int]]
"""Drafts after so many tokens of the text."""


def drafted(
    machine: InProcessChips, drafter: Drafter, sampling: SamplingSpec
) -> tuple[list[int], int]:
    """The text with drafts, cut to its length, and the number of steps."""
    text: list[int] = []
    new = [
        NewRequest(
            request_id="r",
            token_ids=PROMPT,
            prompt_tokens=len(PROMPT),
            sampling=sampling,
            block_ids=BLOCKS,
        )
    ]
    computed = steps = 0
    while len(text) < TOKENS:
        drafts = drafter(text) if text else []
        own = len(PROMPT) + len(text) - computed
        scheduled = Scheduled(
            request_id="r",
            first_position=computed,
            new_tokens=own + len(drafts),
            draft_tokens=drafts,
        )
        step = RankStep(rank=0, new=new, scheduled=[scheduled], finished=[])
        output = machine.step([step])[0]
        assert set(output.request_ids) == {"r"}
        text += output.token_ids.tolist()
        computed, new, steps = len(PROMPT) + len(text) - 1, [], steps + 1
    return text[:TOKENS], steps


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
@pytest.mark.parametrize("tp", [1, 2])
class TestTexts:
    @pytest.fixture
    def plain(
        self, tp: int, sampling: SamplingSpec, small_checkpoints: Mapping[str, Path]
    ) -> list[int]:
        machine = InProcessChips(small_checkpoints["wide_heads"], chips=2, tp=tp)
        return serve(machine, {"r": PROMPT}, new_tokens=TOKENS + 8, sampling=sampling)["r"]

    @pytest.fixture
    def machine(self, tp: int, small_checkpoints: Mapping[str, Path]) -> InProcessChips:
        return InProcessChips(small_checkpoints["wide_heads"], chips=2, tp=tp)

    @pytest.mark.long
    def test_right_drafts_are_all_taken_and_one_more(
        self, machine: InProcessChips, plain: list[int], sampling: SamplingSpec
    ) -> None:
        text, steps = drafted(machine, lambda t: plain[len(t) : len(t) + 3], sampling)

        assert text == plain[:TOKENS]
        assert steps == 1 + -(-(TOKENS - 1) // 4)

    @pytest.mark.long
    def test_wrong_drafts_cost_steps_and_change_nothing(
        self, machine: InProcessChips, plain: list[int], sampling: SamplingSpec
    ) -> None:
        text, steps = drafted(machine, lambda t: [(plain[len(t)] + 1) % 200, 7], sampling)

        assert (text, steps) == (plain[:TOKENS], TOKENS)

    @pytest.mark.long
    def test_drafts_are_taken_up_to_the_first_wrong_one(
        self, machine: InProcessChips, plain: list[int], sampling: SamplingSpec
    ) -> None:
        rng = np.random.default_rng(0)

        def guesses(text: list[int]) -> list[int]:
            right = plain[len(text) : len(text) + int(rng.integers(0, 4))]
            return [*right, -1, 3][: int(rng.integers(1, 6))]

        text, steps = drafted(machine, guesses, sampling)

        assert text == plain[:TOKENS]
        assert TOKENS / 4 < steps < TOKENS
