"""A chip's transitions, one command at a time, and what it says at the end of a step."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.chip.commands import BeginStep, Combine, RunExperts, StopChip
from emulator.chip.effects import Dispatch, ExpertRows, StepDone
from emulator.compute.experts import ExpertNetworks
from emulator.compute.logprobs import prompt_logprobs
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, RowLogprobs, Scheduled
from tests.emulator.chip.in_process import GREEDY, NO_BITMASK, InProcessChips, serve

PROMPT = list(range(50, 90))
LAYERS, HIDDEN, VOCAB = 2, 64, 256  # of the checkpoint "tied"


@pytest.fixture
def machine(small_checkpoints: Mapping[str, Path]) -> InProcessChips:
    return InProcessChips(small_checkpoints["tied"], chips=1)


@pytest.fixture(scope="module")
def logits(small_checkpoints: Mapping[str, Path]) -> np.ndarray:
    """The logits [tokens, vocab] after each token of the prompt."""
    machine = InProcessChips(small_checkpoints["tied"], chips=1)
    serve(machine, {"r": PROMPT}, new_tokens=1)
    return machine.rows("r")


def new(name: str = "r", *, sampling: SamplingSpec = GREEDY, first_block: int = 1) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=PROMPT,
        prompt_tokens=len(PROMPT),
        sampling=sampling,
        block_ids=list(range(first_block, first_block + 4)),
    )


def tokens(name: str, first: int, count: int) -> Scheduled:
    return Scheduled(request_id=name, first_position=first, new_tokens=count)


def step(*scheduled: Scheduled, new: tuple[NewRequest, ...] = (), **fields: object) -> RankStep:
    return RankStep(
        rank=0,
        new=list(new),
        scheduled=list(scheduled),
        finished=[],
        **fields,  # type: ignore[arg-type]
    )


def rank_output(machine: InProcessChips, step: RankStep) -> RankOutput:
    return machine.step([step])[0]


class TestTransitions:
    @pytest.mark.long
    def test_a_step_is_one_dispatch_per_layer_and_then_its_tokens(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        (chip,) = machine.chips
        effect = chip.handle(
            BeginStep(step=step(tokens("r", 0, 40), new=(new(),)), grammar_bitmask=NO_BITMASK)
        )
        for layer in range(LAYERS):
            assert isinstance(effect, Dispatch)
            assert effect.layer == layer
            assert effect.hidden.shape == (40, HIDDEN)
            assert effect.chosen.shape == (40, 4)
            # The experts are asked as the exchange would ask them.
            order = np.argsort(effect.chosen.ravel(), kind="stable")
            answer = chip.handle(
                RunExperts(
                    layer=layer,
                    rows=effect.hidden,
                    row_of_pair=order // 4,
                    counts=np.bincount(effect.chosen.ravel(), minlength=16),
                )
            )
            assert isinstance(answer, ExpertRows)
            rows = np.empty_like(answer.rows)
            rows[order] = answer.rows
            effect = chip.handle(Combine(layer=layer, expert_rows=rows.reshape(40, 4, HIDDEN)))

        assert isinstance(effect, StepDone)
        assert effect.output.token_ids.tolist() == [logits[-1].argmax()]
        assert effect.output.request_ids == ["r"]
        assert effect.output.rank == 0

    @pytest.mark.long
    def test_experts_are_run_in_any_state_and_change_nothing(self, machine: InProcessChips) -> None:
        (chip,) = machine.chips
        rows = np.random.default_rng(0).standard_normal((3, HIDDEN)).astype(np.float32)
        counts = np.zeros(16, dtype=np.int64)
        counts[[2, 9]] = 1, 3
        work = RunExperts(layer=1, rows=rows, row_of_pair=np.array([2, 0, 1, 2]), counts=counts)
        experts = chip._experts(1)
        expected = ExpertNetworks(experts.gate_up, experts.down).run(
            rows, np.array([2, 0, 1, 2]), counts
        )

        before = chip.handle(work)
        effect = chip.handle(
            BeginStep(step=step(tokens("r", 0, 40), new=(new(),)), grammar_bitmask=NO_BITMASK)
        )
        during = chip.handle(work)

        assert isinstance(effect, Dispatch)
        for answer in (before, during):
            assert isinstance(answer, ExpertRows)
            assert answer.layer == 1
            assert (answer.rows == expected).all()

    def test_a_step_without_tokens_ends_at_once_but_is_heard(self, machine: InProcessChips) -> None:
        (chip,) = machine.chips
        effect = chip.handle(BeginStep(step=step(new=(new(),)), grammar_bitmask=NO_BITMASK))

        assert isinstance(effect, StepDone)
        assert effect.output.rank == 0
        assert effect.output.request_ids == []
        assert effect.output.token_ids.shape == (0,)
        assert effect.output.prompt_logprobs == {}
        assert rank_output(machine, step(tokens("r", 0, 40))).request_ids == ["r"]

    def test_a_command_out_of_turn_is_a_programming_error(self, machine: InProcessChips) -> None:
        (chip,) = machine.chips
        combine = Combine(layer=0, expert_rows=np.zeros((1, 4, HIDDEN), dtype=np.float32))
        begin = BeginStep(step=step(tokens("r", 0, 4), new=(new(),)), grammar_bitmask=NO_BITMASK)

        with pytest.raises(AssertionError, match="outside a step"):
            chip.handle(combine)
        with pytest.raises(AssertionError, match="StopChip"):
            chip.handle(StopChip())
        chip.handle(begin)
        with pytest.raises(AssertionError, match="before the last one ended"):
            chip.handle(begin)

    def test_after_its_last_layer_a_chip_is_idle_again(self, machine: InProcessChips) -> None:
        rank_output(machine, step(tokens("r", 0, 40), new=(new(),)))

        with pytest.raises(AssertionError, match="outside a step"):
            machine.chips[0].handle(
                Combine(layer=0, expert_rows=np.zeros((40, 4, HIDDEN), dtype=np.float32))
            )

    def test_a_finished_request_is_unknown_afterwards(self, machine: InProcessChips) -> None:
        rank_output(machine, step(tokens("r", 0, 40), new=(new(),)))
        machine.step([RankStep(rank=0, new=[], scheduled=[], finished=["r"])])

        with pytest.raises(KeyError):
            rank_output(machine, step(tokens("r", 40, 1)))


class TestTokens:
    def test_a_part_of_a_prompt_samples_nothing_and_its_end_samples_one(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        first = rank_output(machine, step(tokens("r", 0, 39), new=(new(),)))
        last = rank_output(machine, step(tokens("r", 39, 1)))

        assert (first.request_ids, first.token_ids.tolist()) == ([], [])
        assert (last.request_ids, last.token_ids.tolist()) == (["r"], [logits[-1].argmax()])
        assert first.logprobs is last.logprobs is None

    def test_only_the_requests_that_reached_their_end_are_sampled_in_their_order(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        output = rank_output(
            machine,
            step(
                tokens("b", 0, 40),
                tokens("part", 0, 10),
                tokens("a", 0, 40),
                new=(
                    new("a", sampling=SamplingSpec(temperature=0.0, logit_bias=((7, 99.0),))),
                    new("b", first_block=5),
                    new("part", first_block=9),
                ),
            ),
        )

        assert output.request_ids == ["b", "a"]
        assert output.token_ids.tolist() == [logits[-1].argmax(), 7]

    # 6 before 5, but 6 neither after an output 6 nor after an output 89, the prompt's last token.
    ALTERNATES = SamplingSpec(
        temperature=0.0, logit_bias=((5, 50.0), (6, 99.0)), bad_words=((6, 6), (89, 6))
    )

    def test_sampled_tokens_are_remembered_as_outputs_and_the_prompt_is_none(
        self, machine: InProcessChips
    ) -> None:
        outputs = [
            rank_output(machine, step(tokens("r", 0, 40), new=(new(sampling=self.ALTERNATES),))),
            rank_output(machine, step(tokens("r", 40, 1))),
            rank_output(machine, step(tokens("r", 41, 1))),
        ]

        assert [output.token_ids.tolist() for output in outputs] == [[6], [5], [6]]

    def test_the_text_of_a_request_that_moved_in_is_its_output_too(
        self, machine: InProcessChips
    ) -> None:
        moved = NewRequest(
            request_id="r",
            token_ids=[*PROMPT, 6],
            prompt_tokens=40,
            sampling=self.ALTERNATES,
            block_ids=[1, 2, 3],
        )

        output = rank_output(machine, step(tokens("r", 0, 41), new=(moved,)))

        assert output.token_ids.tolist() == [5]

    def test_the_prompt_counts_for_the_penalty_that_counts_it(
        self, machine: InProcessChips
    ) -> None:
        # 50 is in the prompt and 5 is not: a tenth of 90 is less than 30.
        new_words = SamplingSpec(
            temperature=0.0, repetition_penalty=10.0, logit_bias=((5, 30.0), (50, 90.0))
        )

        output = rank_output(machine, step(tokens("r", 0, 40), new=(new(sampling=new_words),)))

        assert output.token_ids.tolist() == [5]

    def test_every_answer_carries_its_rank(self, small_checkpoints: Mapping[str, Path]) -> None:
        machine = InProcessChips(small_checkpoints["tied"], chips=2)
        first = RankStep(rank=1, new=[new()], scheduled=[tokens("r", 0, 30)], finished=[])
        second = RankStep(rank=1, new=[], scheduled=[tokens("r", 30, 10)], finished=[])
        idle = RankStep(rank=1, new=[], scheduled=[], finished=["r"])

        answers = [machine.step([given]) for given in (first, second, idle)]

        assert [list(answer) for answer in answers] == [[1]] * 3
        assert [answer[1].rank for answer in answers] == [1] * 3


class TestGrammar:
    def test_rows_of_the_bitmask_reach_the_requests_that_they_name(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        allowed = {"a": 200, "c": 3}
        bitmask = np.zeros((2, VOCAB // 32), dtype=np.int32)
        for row, name in enumerate(("c", "a")):
            word, bit = divmod(allowed[name], 32)
            bitmask[row, word] = 1 << bit
        asks = SamplingSpec(temperature=0.0, uses_grammar=True)
        names = ("a", "b", "c")
        begin = step(
            *(tokens(name, 0, 40) for name in names),
            new=tuple(
                new(name, sampling=asks if name in allowed else GREEDY, first_block=1 + 4 * index)
                for index, name in enumerate(names)
            ),
            grammar_rows=["c", "a"],
        )

        output = machine.step([begin], {0: bitmask})[0]

        assert output.request_ids == ["a", "b", "c"]
        assert output.token_ids.tolist() == [200, logits[-1].argmax(), 3]


def full_report(logits: np.ndarray) -> RowLogprobs:
    return prompt_logprobs(logits[:-1], np.array(PROMPT[1:]), 3)


def assert_same(found: RowLogprobs, expected: RowLogprobs) -> None:
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.ranks.tolist() == expected.ranks.tolist()
    assert (found.logprobs == expected.logprobs).all()


class TestLogprobs:
    ASKS = SamplingSpec(temperature=0.0, prompt_logprobs=3)

    @pytest.mark.parametrize("cuts", [[40], [39, 1], [1, 39], [13, 13, 14], [1] * 40])
    def test_a_prompts_are_reported_once_it_is_complete(
        self, cuts: list[int], machine: InProcessChips, logits: np.ndarray
    ) -> None:
        outputs, first = [], 0
        for count in cuts:
            fresh = () if first else (new(sampling=self.ASKS),)
            outputs.append(rank_output(machine, step(tokens("r", first, count), new=fresh)))
            first += count

        assert all(not output.prompt_logprobs for output in outputs[:-1])
        assert list(outputs[-1].prompt_logprobs) == ["r"]
        assert_same(outputs[-1].prompt_logprobs["r"], full_report(logits))

    def test_decodes_report_no_prompt_again(self, machine: InProcessChips) -> None:
        rank_output(machine, step(tokens("r", 0, 40), new=(new(sampling=self.ASKS),)))

        assert rank_output(machine, step(tokens("r", 40, 1))).prompt_logprobs == {}

    def test_a_prompt_that_is_preempted_in_its_middle_is_reported_once(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        rank_output(machine, step(tokens("r", 0, 25), new=(new(sampling=self.ASKS),)))
        resumed = Scheduled(
            request_id="r",
            first_position=0,
            new_tokens=40,
            new_block_ids=[9, 8, 7],
            replaces_blocks=True,
        )

        output = rank_output(machine, step(resumed))

        assert_same(output.prompt_logprobs["r"], full_report(logits))

    def test_a_prompt_that_is_computed_again_for_a_resumed_text_is_not_reported_again(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        once = rank_output(machine, step(tokens("r", 0, 40), new=(new(sampling=self.ASKS),)))
        resumed = Scheduled(
            request_id="r",
            first_position=0,
            new_tokens=41,
            new_block_ids=[9, 8, 7],
            replaces_blocks=True,
        )

        again = rank_output(machine, step(resumed))

        assert_same(once.prompt_logprobs["r"], full_report(logits))
        assert again.request_ids == ["r"]
        assert again.prompt_logprobs == {}

    def test_a_prompt_of_one_token_has_none(self, machine: InProcessChips) -> None:
        one = NewRequest(
            request_id="r", token_ids=[5], prompt_tokens=1, sampling=self.ASKS, block_ids=[1]
        )

        assert rank_output(machine, step(tokens("r", 0, 1), new=(one,))).prompt_logprobs == {}

    def test_sampled_ones_come_with_their_request(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        asks = SamplingSpec(temperature=0.0, logprobs=2)

        output = rank_output(
            machine,
            step(
                tokens("quiet", 0, 40),
                tokens("asks", 0, 40),
                new=(new("quiet"), new("asks", sampling=asks, first_block=5)),
            ),
        )

        assert output.logprobs is not None
        expected = prompt_logprobs(logits[-1:], logits[-1:].argmax(axis=1), 2)
        assert output.logprobs.token_ids[1].tolist() == expected.token_ids[0].tolist()
        assert (output.logprobs.logprobs[1] == expected.logprobs[0]).all()
        assert output.logprobs.ranks.tolist() == [0, 1]


class TestBlockCopies:
    def test_a_block_is_copied_before_the_step_writes(
        self, machine: InProcessChips, logits: np.ndarray
    ) -> None:
        # "r" goes on in blocks 3 and 11; 11 begins as a copy of its second block, 2.
        rank_output(machine, step(tokens("r", 0, 20), new=(new(),)))
        resumed = Scheduled(
            request_id="r",
            first_position=20,
            new_tokens=20,
            new_block_ids=[1, 11, 3],
            replaces_blocks=True,
        )

        output = rank_output(machine, step(resumed, block_copies=[(2, 11)]))

        assert output.token_ids.tolist() == [logits[-1].argmax()]
        assert (machine.rows("r") == logits).all()
