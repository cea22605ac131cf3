import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled
from emulator.ultraserver.synthetic_tokens import SyntheticTokens

VOCAB = 1024
GREEDY = SamplingSpec(temperature=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SMALL_MOE_DIR / "tokenizer.json"))


def new(
    name: str, prompt: list[int], sampling: SamplingSpec = GREEDY, text: list[int] | None = None
) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=[*prompt, *(text or [])],
        prompt_tokens=len(prompt),
        sampling=sampling,
        block_ids=[1],
    )


def first_step(
    requests: list[NewRequest], *, rank: int = 0, rows: tuple[str, ...] = ()
) -> RankStep:
    scheduled = [
        Scheduled(request_id=r.request_id, first_position=0, new_tokens=len(r.token_ids))
        for r in requests
    ]
    return RankStep(
        rank=rank, new=requests, scheduled=scheduled, finished=[], grammar_rows=list(rows)
    )


def next_step(positions: dict[str, int], *, rank: int = 0) -> RankStep:
    scheduled = [
        Scheduled(request_id=name, first_position=position, new_tokens=1)
        for name, position in positions.items()
    ]
    return RankStep(rank=rank, new=[], scheduled=scheduled, finished=[])


def text_of(prompt: list[int], sampling: SamplingSpec = GREEDY, *, tokens: int = 8) -> list[int]:
    """What a request gets alone on a machine of one rank."""
    made = SyntheticTokens(SMALL_MOE_DIR, 1)
    text = made.step([first_step([new("r", prompt, sampling)])], {}).outputs[0].token_ids.tolist()
    for position in range(len(prompt), len(prompt) + tokens - 1):
        text += made.step([next_step({"r": position})], {}).outputs[0].token_ids.tolist()
    return text


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


class TestTexts:
    def test_a_text_is_plain_words_that_vary(self, tokenizer: Tokenizer) -> None:
        text = text_of([5, 6, 7], tokens=40)

        assert len(set(text)) > 20
        assert all(tokenizer.decode([token]).strip() for token in text)
        assert all(tokenizer.decode([token]).isprintable() for token in text)

    @pytest.mark.long
    @given(prompts, prompts)
    def test_it_depends_on_the_prompt_alone(self, prompt: list[int], other: list[int]) -> None:
        assert text_of(prompt) == text_of(prompt)
        assert (text_of(prompt) == text_of(other)) == (prompt == other)

    def test_ranks_neighbours_and_chunks_do_not_change_it(self) -> None:
        prompt = list(range(40, 60))
        expected = text_of(prompt, tokens=3)
        made = SyntheticTokens(SMALL_MOE_DIR, 4)
        others = [new(f"o{index}", [index + 1]) for index in range(3)]

        part = Scheduled(request_id="r", first_position=0, new_tokens=15)
        chunk = RankStep(rank=2, new=[new("r", prompt), *others], scheduled=[part], finished=[])
        assert made.step([chunk, first_step(others)], {}).outputs[2].request_ids == []
        rest = Scheduled(request_id="r", first_position=15, new_tokens=5)
        both = Scheduled(request_id="o1", first_position=0, new_tokens=1)
        last = RankStep(rank=2, new=[], scheduled=[both, rest], finished=[])
        output = made.step([last], {}).outputs[2]
        assert output.request_ids == ["o1", "r"]
        text = [int(output.token_ids[1])]
        for position in (20, 21):
            output = made.step([next_step({"r": position}, rank=2)], {}).outputs[2]
            text.append(int(output.token_ids[0]))

        assert text == expected

    def test_a_request_that_moved_goes_on_where_it_was(self) -> None:
        prompt, expected = [9, 8, 7], text_of([9, 8, 7], tokens=4)
        made = SyntheticTokens(SMALL_MOE_DIR, 2)

        moved = first_step([new("r", prompt, text=expected[:3])], rank=1)

        assert made.step([moved], {}).outputs[1].token_ids.tolist() == expected[3:]

    def test_a_random_text_depends_on_its_seed_too(self) -> None:
        seeds = [SamplingSpec(temperature=1.0, seed=seed) for seed in (1, 1, 2)]
        first, again, other = (text_of([5, 6], sampling) for sampling in seeds)

        assert first == again != other
        assert first != text_of([5, 6])

    def test_a_seed_may_be_any_that_a_request_may_have(self) -> None:
        seeds = [-(2**63), -1, 0, 2**63, 2**64 - 1]
        texts = [text_of([5, 6], SamplingSpec(temperature=1.0, seed=seed)) for seed in seeds]

        assert texts[0] == texts[3] != texts[2]  # as one word of 64 bits
        assert texts[1] == texts[4]


class TestRequests:
    def test_what_finished_is_unknown_and_what_a_rank_forgot_too(self) -> None:
        made = SyntheticTokens(SMALL_MOE_DIR, 2)
        for rank in range(2):
            made.step([first_step([new("a", [1, 2]), new("b", [3])], rank=rank)], {})
        made.step([RankStep(rank=0, new=[], scheduled=[], finished=["a"])], {})

        with pytest.raises(KeyError):
            made.step([next_step({"a": 2})], {})
        assert made.step([next_step({"b": 1})], {}).outputs[0].request_ids == ["b"]
        made.forget([0])
        with pytest.raises(KeyError):
            made.step([next_step({"b": 2})], {})
        assert made.step([next_step({"a": 2}, rank=1)], {}).outputs[1].request_ids == ["a"]

    def test_it_says_nothing_of_where_tokens_went(self) -> None:
        result = SyntheticTokens(SMALL_MOE_DIR, 1).step([first_step([new("a", [1])])], {})

        assert result.loads is result.expert_pairs is None


class TestOptions:
    def test_a_grammar_is_obeyed_by_the_rows_that_it_names(self) -> None:
        prompt = [5, 6, 7]
        free = text_of(prompt, tokens=1)[0]
        asks = SamplingSpec(temperature=0.0, uses_grammar=True)
        allowed = {"a": [17, 900], "b": [2], "d": [free, 30]}  # 2 is the end of a text
        names = ["a", "b", "c", "d"]
        bitmask = np.zeros((3, VOCAB // 32), dtype=np.int32)
        for row, tokens in enumerate(allowed.values()):
            for token in tokens:
                bitmask[row, token // 32] |= np.uint32(1 << token % 32).astype(np.int32)
        step = first_step(
            [new(name, prompt, asks if name in allowed else GREEDY) for name in names],
            rows=tuple(allowed),
        )

        output = SyntheticTokens(SMALL_MOE_DIR, 1).step([step], {0: bitmask}).outputs[0]

        found = dict(zip(output.request_ids, output.token_ids.tolist(), strict=True))
        assert found["a"] in (17, 900)
        assert (found["b"], found["c"], found["d"]) == (2, free, free)

    def test_options_that_allow_the_word_leave_it_and_others_are_kept(self) -> None:
        prompt = [5, 6, 7]
        free = text_of(prompt, tokens=1)[0]
        kinds = {
            "logprobs": SamplingSpec(temperature=0.0, logprobs=2),
            "banned": SamplingSpec(temperature=0.0, bad_words=((free,),)),
            "only": SamplingSpec(temperature=0.0, allowed_token_ids=(77,)),
            "biased": SamplingSpec(temperature=0.0, logit_bias=((55, 100.0),)),
            "plain": GREEDY,
        }
        step = first_step([new(name, prompt, sampling) for name, sampling in kinds.items()])

        output = SyntheticTokens(SMALL_MOE_DIR, 1).step([step], {}).outputs[0]

        found = dict(zip(output.request_ids, output.token_ids.tolist(), strict=True))
        assert found.pop("banned") != free
        assert found == {"logprobs": free, "only": 77, "biased": 55, "plain": free}
        assert output.logprobs is not None
        assert output.logprobs.ranks[0] == 1
        assert output.logprobs.token_ids[0, 0] == free


class TestTokenizers:
    def test_without_one_it_is_a_checkpoint_error(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: no tokenizer to make"):
            SyntheticTokens(tmp_path, 1)

    def test_one_without_words_is_a_checkpoint_error(self, tmp_path: Path) -> None:
        text = (
            '{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, '
            '"post_processor": null, "decoder": null, "truncation": null, "padding": null, '
            '"model": {"type": "WordLevel", "vocab": {" ": 0, "\\n": 1}, "unk_token": " "}}'
        )
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")

        with pytest.raises(CheckpointError, match="no token is text of its own"):
            SyntheticTokens(tmp_path, 1)


@pytest.mark.long
def test_sixteen_requests_on_each_of_144_ranks_are_quick() -> None:
    made = SyntheticTokens(SMALL_MOE_DIR, 144)
    steps = []
    for rank in range(144):
        requests = [new(f"{rank}-{index}", [rank, index] * 100) for index in range(16)]
        steps.append(first_step(requests, rank=rank))
    made.step(steps, {})
    decodes = [
        next_step({f"{rank}-{index}": 200 for index in range(16)}, rank=rank) for rank in range(144)
    ]

    started, cpu_started = time.perf_counter(), time.process_time()
    result = made.step(decodes, {})
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started

    print(f"2,304 made-up tokens: {wall_s * 1e3:.0f} ms, {cpu_s * 1e3:.0f} ms of a core")
    assert sum(len(output.request_ids) for output in result.outputs.values()) == 2_304
    assert cpu_s < 1.0  # 0.04 s on an idle core


class TestLogprobs:
    def test_the_sampled_token_of_a_greedy_text_is_the_likeliest(self) -> None:
        made = SyntheticTokens(SMALL_MOE_DIR, 1)
        asked = SamplingSpec(temperature=0.0, logprobs=3)

        output = made.step([first_step([new("r", [5, 6, 7], asked)])], {}).outputs[0]

        assert output.logprobs is not None
        assert output.token_ids.tolist() == text_of([5, 6, 7], tokens=1)
        assert output.logprobs.token_ids[0, :2].tolist() == output.token_ids.tolist() * 2
        assert output.logprobs.ranks.tolist() == [1]
        assert (np.diff(output.logprobs.logprobs[0, 1:]) <= 0).all()

    @pytest.mark.parametrize("chunk", [1, 3, 300])
    def test_a_prompt_is_scored_once_however_it_is_cut(self, chunk: int) -> None:
        made, whole = SyntheticTokens(SMALL_MOE_DIR, 1), SyntheticTokens(SMALL_MOE_DIR, 1)
        prompt = [(7 * each) % VOCAB for each in range(200)]
        asked = new("r", prompt, SamplingSpec(temperature=0.0, logprobs=2, prompt_logprobs=2))
        (at_once,) = whole.step([first_step([asked])], {}).outputs[0].prompt_logprobs.values()
        found = []
        for start in range(0, len(prompt), chunk):
            tokens = min(chunk, len(prompt) - start)
            scheduled = Scheduled(request_id="r", first_position=start, new_tokens=tokens)
            step = RankStep(
                rank=0, new=[asked] if not start else [], scheduled=[scheduled], finished=[]
            )
            found += made.step([step], {}).outputs[0].prompt_logprobs.values()

        (rows,) = found
        assert rows.token_ids[:, 0].tolist() == prompt[1:]
        assert rows.token_ids.shape == rows.logprobs.shape == (len(prompt) - 1, 3)
        np.testing.assert_array_equal(rows.token_ids, at_once.token_ids)
        np.testing.assert_array_equal(rows.logprobs, at_once.logprobs)
        np.testing.assert_array_equal(rows.ranks, at_once.ranks)
        assert (rows.logprobs <= 0).all()
        assert (rows.ranks >= 1).all()
