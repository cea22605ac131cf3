import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.chip.request_table import ChipRequest, RequestTable
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled

GREEDY = SamplingSpec(temperature=0.0)


def new(name: str = "r", tokens: int = 5, prompt_tokens: int = 3, *blocks: int) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=list(range(10, 10 + tokens)),
        prompt_tokens=prompt_tokens,
        sampling=GREEDY,
        block_ids=list(blocks),
    )


def step(
    *scheduled: Scheduled, new: tuple[NewRequest, ...] = (), finished: tuple[str, ...] = ()
) -> RankStep:
    return RankStep(rank=0, new=list(new), scheduled=list(scheduled), finished=list(finished))


class TestChipRequest:
    def test_it_knows_what_was_prompt_and_what_was_generated(self) -> None:
        request = ChipRequest(new(tokens=5, prompt_tokens=3))

        request.append(99)

        assert len(request) == 6
        assert request.prompt.tolist() == [10, 11, 12]
        assert request.generated.tolist() == [13, 14, 99]
        assert request.tokens(2, 6).tolist() == [12, 13, 14, 99]

    @given(st.integers(1, 200), st.integers(0, 400))
    def test_it_grows_as_long_as_tokens_come(self, prompt: int, generated: int) -> None:
        request = ChipRequest(new(tokens=prompt, prompt_tokens=prompt))

        for token in range(generated):
            request.append(token)

        assert len(request) == prompt + generated
        assert request.prompt.tolist() == list(range(10, 10 + prompt))
        assert request.generated.tolist() == list(range(generated))

    def test_tokens_that_do_not_exist_yet_cannot_be_taken(self) -> None:
        with pytest.raises(AssertionError):
            ChipRequest(new(tokens=5)).tokens(4, 6)

    @pytest.mark.parametrize("prompt_tokens", [0, 6])
    def test_a_prompt_has_a_token_and_no_more_than_there_are(self, prompt_tokens: int) -> None:
        with pytest.raises(AssertionError, match="r"):
            ChipRequest(new(tokens=5, prompt_tokens=prompt_tokens))

    def test_the_callers_blocks_are_copied(self) -> None:
        request = new("r", 5, 3, 7, 8)
        ChipRequest(request).block_ids.append(9)

        assert request.block_ids == [7, 8]


class TestRequestTable:
    def test_new_blocks_are_appended_or_take_the_place_of_all(self) -> None:
        table = RequestTable()
        table.apply(
            step(
                Scheduled(request_id="r", first_position=0, new_tokens=3), new=(new("r", 5, 3, 4),)
            )
        )
        assert table["r"].block_ids == [4]

        more = Scheduled(request_id="r", first_position=3, new_tokens=1, new_block_ids=[6, 5])
        table.apply(step(more))
        assert table["r"].block_ids == [4, 6, 5]

        other = Scheduled(
            request_id="r", first_position=0, new_tokens=1, new_block_ids=[1], replaces_blocks=True
        )
        table.apply(step(other))
        assert table["r"].block_ids == [1]

    def test_a_finished_request_is_forgotten_and_its_name_may_come_again(self) -> None:
        table = RequestTable()
        table.apply(step(new=(new("r", 5, 3), new("s", 5, 3))))
        table["r"].append(99)

        table.apply(step(new=(new("r", 4, 2),), finished=("r", "never heard of")))

        assert len(table) == 2
        assert len(table["r"]) == 4
        table.apply(step(finished=("r",)))
        assert len(table) == 1

    def test_spans_are_the_tokens_of_the_step_in_its_order(self) -> None:
        table = RequestTable()
        table.apply(step(new=(new("r", 5, 3, 4, 6), new("s", 9, 9, 5))))

        r, s = (
            Scheduled(request_id="r", first_position=4, new_tokens=1),
            Scheduled(request_id="s", first_position=2, new_tokens=3),
        )
        spans = table.spans([s, r])

        assert [span.token_ids.tolist() for span in spans] == [[12, 13, 14], [14]]
        assert [span.first_position for span in spans] == [2, 4]
        assert [list(span.block_table) for span in spans] == [[5], [4, 6]]
        assert spans[0].token_ids.dtype == np.int32
