"""Our own promises: worked cases, and that a row never feels the rows beside it."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.compute.logits_changes import apply_penalties
from emulator.compute.logprobs import key_columns, prompt_logprobs, sort_keys
from emulator.compute.sampling import Sampled, narrow, sample, uniform
from emulator.specs.sampling import SamplingSpec

VOCAB = 100
NONE = np.zeros(0, dtype=np.int32)


def row(*values: float) -> np.ndarray:
    return np.array([values], dtype=np.float32)


def sample_one(
    logits: np.ndarray,
    spec: SamplingSpec,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    allowed_bits: int | None = None,
) -> Sampled:
    bitmask = None if allowed_bits is None else np.array([[allowed_bits]], dtype=np.int32)
    return sample(
        logits,
        [spec],
        [np.array(prompt, dtype=np.int32)],
        [np.array(output, dtype=np.int32)],
        bitmask,
    )


def greedy(logits: np.ndarray, *, output: Sequence[int] = (), **wishes: object) -> int:
    spec = SamplingSpec(temperature=0.0, **wishes)  # type: ignore[arg-type]
    return int(sample_one(logits, spec, output=output).token_ids[0])


# --- by hand -----------------------------------------------------------------------------------


def test_the_first_of_the_largest_logits_is_taken_as_in_torch() -> None:
    logits = row(1.0, 3.0, 2.0, 3.0)

    assert greedy(logits) == 1 == int(torch.tensor(logits).argmax(dim=-1))
    assert greedy(logits, logprobs=0) == 1


def test_penalties_by_hand() -> None:
    # Token 0 is in the prompt, 1 twice and 2 once in the output, 3 nowhere.
    logits = row(4.0, 4.0, -4.0, 4.0)
    spec = SamplingSpec(
        temperature=0.0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25
    )

    apply_penalties(logits, [spec], [np.array([0, 0])], [np.array([1, 2, 1])])

    assert logits.tolist() == [[2.0, 2.0 - 2 * 0.5 - 0.25, -8.0 - 0.5 - 0.25, 4.0]]


def test_a_bad_word_is_cut_before_its_last_token_and_only_there() -> None:
    logits = row(0.0, 1.0, 2.0)

    assert greedy(logits, bad_words=((2,),)) == 1
    assert greedy(logits, bad_words=((0, 2),)) == 2
    assert greedy(logits, bad_words=((0, 2),), output=[1, 0]) == 1
    assert greedy(logits, bad_words=((0, 2),), output=[0, 1]) == 2
    assert greedy(logits, bad_words=((1, 0, 2),), output=[0]) == 2


def test_stop_tokens_wait_for_min_tokens() -> None:
    logits = row(0.0, 1.0, 2.0)

    assert greedy(logits, min_tokens=2, stop_token_ids=(2,), output=[0]) == 1
    assert greedy(logits, min_tokens=2, stop_token_ids=(2,), output=[0, 0]) == 2


def test_a_bias_can_lift_a_token_and_an_allowed_list_can_exclude_it() -> None:
    logits = row(0.0, 1.0, 2.0)

    assert greedy(logits, logit_bias=((0, 3.0),)) == 0
    assert greedy(logits, logit_bias=((0, 3.0),), allowed_token_ids=(1, 2)) == 2


def test_a_grammar_bit_of_zero_forbids_its_token_and_takes_it_from_the_logprobs() -> None:
    logits = row(0.0, 1.0, 2.0)
    spec = SamplingSpec(temperature=0.0, logprobs=3)

    drawn = sample_one(logits, spec, allowed_bits=0b011)

    assert drawn.token_ids.tolist() == [1]
    assert drawn.logprobs is not None
    assert drawn.logprobs.token_ids.tolist() == [[1, 1, 0, 2]]
    assert drawn.logprobs.ranks.tolist() == [1]
    expected = -np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(
        drawn.logprobs.logprobs, [[expected, expected, expected - 1, -np.inf]], rtol=1e-6
    )


def test_logprobs_are_of_the_raw_logits_and_the_rank_counts_equals() -> None:
    logits = row(3.0, 2.0, 2.0, 1.0)
    spec = SamplingSpec(temperature=0.0, logprobs=1, logit_bias=((2, 5.0),))

    drawn = sample_one(logits, spec)

    assert drawn.token_ids.tolist() == [2]
    assert drawn.logprobs is not None
    assert drawn.logprobs.token_ids.tolist() == [[2, 0]]
    assert drawn.logprobs.ranks.tolist() == [3]
    total = np.log(np.exp([3.0, 2.0, 2.0, 1.0]).sum())
    np.testing.assert_allclose(drawn.logprobs.logprobs, [[2 - total, 3 - total]], rtol=1e-6)


def test_top_k_keeps_the_equals_of_the_kth_token() -> None:
    kept = narrow(row(1.0, 3.0, 2.0, 2.0), [SamplingSpec(seed=0, top_k=2)])

    assert np.isfinite(kept).tolist() == [[False, True, True, True]]


def test_top_p_keeps_the_fewest_tokens_and_of_equals_the_first() -> None:
    probabilities = np.log([[0.125, 0.5, 0.125, 0.25]]).astype(np.float32)

    def kept(top_p: float) -> list[bool]:
        return np.isfinite(narrow(probabilities, [SamplingSpec(seed=0, top_p=top_p)]))[0].tolist()

    assert kept(0.01) == [False, True, False, False]
    assert kept(0.51) == [False, True, False, True]
    assert kept(0.8) == [True, True, False, True]
    assert kept(0.9) == [True, True, True, True]
    assert kept(1e-12) == [False, True, False, False]


def test_top_p_needs_no_token_beyond_its_exact_sum() -> None:
    kept = narrow(row(0.0, 0.0, 0.0, 0.0), [SamplingSpec(seed=0, top_p=0.5)])

    assert np.isfinite(kept).tolist() == [[True, True, False, False]]


def test_min_p_is_a_share_of_the_largest_probability() -> None:
    probabilities = np.log([[0.5, 0.3, 0.15, 0.05]]).astype(np.float32)

    kept = narrow(probabilities, [SamplingSpec(seed=0, min_p=0.25)])

    assert np.isfinite(kept).tolist() == [[True, True, True, False]]


def test_rows_that_asked_for_less_or_nothing_are_padded() -> None:
    silent, little, much, named = (
        SamplingSpec(temperature=0.0, logprobs=logprobs, logprob_token_ids=token_ids)
        for logprobs, token_ids in ((None, None), (0, None), (2, None), (None, (2,)))
    )
    specs = [silent, little, much, named]

    drawn = sample(np.repeat(row(0.0, 1.0, 2.0), 4, axis=0), specs, [NONE] * 4, [NONE] * 4)

    assert drawn.logprobs is not None
    assert drawn.logprobs.token_ids.tolist() == [[0, 0, 0], [2, 0, 0], [2, 2, 1], [2, 2, 0]]
    assert drawn.logprobs.ranks.tolist() == [0, 1, 1, 1]
    assert np.isneginf(drawn.logprobs.logprobs).tolist() == [
        [True, True, True],
        [False, True, True],
        [False, False, False],
        [False, False, True],
    ]


@pytest.mark.parametrize(
    "spec", [SamplingSpec(temperature=0.0), SamplingSpec(seed=1, top_p=0.5, min_p=0.1, top_k=2)]
)
def test_a_grammar_that_allows_nothing_gives_the_first_token_and_no_error(
    spec: SamplingSpec,
) -> None:
    assert sample_one(row(1.0, 2.0, 3.0), spec, allowed_bits=0).token_ids.tolist() == [0]


def test_an_absurd_penalty_overflows_without_an_error() -> None:
    spec = SamplingSpec(seed=1, repetition_penalty=1e-300, top_p=0.5)

    drawn = sample_one(row(0.0, 2.0, 3.0), spec, output=[0, 1, 2])

    assert 0 <= int(drawn.token_ids[0]) < 3


# --- draws -------------------------------------------------------------------------------------


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    numbers = {(seed, at): uniform(seed, at) for seed in range(20) for at in range(20)}

    assert len(set(numbers.values())) == len(numbers)
    assert all(uniform(seed, at) == number for (seed, at), number in numbers.items())
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


@pytest.mark.long
def test_uniform_numbers_of_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    grid = np.array([[uniform(seed, at) for at in range(150)] for seed in range(150)]) - 0.5

    deviation = 1 / 12 / 150  # of the mean product of 150 * 150 independent pairs
    assert abs(grid.mean()) < 5 * (1 / 12) ** 0.5 / 150
    assert abs((grid[1:] * grid[:-1]).mean()) < 5 * deviation
    assert abs((grid[:, 1:] * grid[:, :-1]).mean()) < 5 * deviation


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_a_draw_is_the_token_whose_share_of_the_probability_holds_the_number(
    number: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.compute.sampling.uniform", lambda *_: number)
    spec = SamplingSpec(seed=0, allowed_token_ids=(1, 3))

    assert sample_one(row(0.0, 0.0, 0.0, 0.0, 0.0), spec).token_ids.tolist() == [token]


@pytest.mark.long
def test_an_excluded_token_is_never_drawn() -> None:
    logits = np.zeros((4000, 5), dtype=np.float32)
    specs = [SamplingSpec(seed=seed, allowed_token_ids=(1, 3)) for seed in range(4000)]

    drawn = sample(logits, specs, [NONE] * 4000, [NONE] * 4000).token_ids

    assert set(drawn.tolist()) == {1, 3}


# --- rows do not feel each other ---------------------------------------------------------------

TOKEN = st.integers(0, VOCAB - 1)
TOKENS = st.lists(TOKEN, max_size=10).map(lambda ids: np.array(ids, dtype=np.int32))
SPECS = st.builds(
    SamplingSpec,
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    top_k=st.sampled_from([0, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.sampled_from([(), ((3, 2.0),)]),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.sampled_from([(), (1, 2)]),
    bad_words=st.sampled_from([(), ((4,), (5, 6))]),
    allowed_token_ids=st.sampled_from([None, tuple(range(0, VOCAB, 3))]),
    logprobs=st.sampled_from([None, None, 0, 3, -1]),
    logprob_token_ids=st.sampled_from([None, None, (7, 8)]),
)


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.lists(st.tuples(SPECS, TOKENS, TOKENS), min_size=1, max_size=9), st.integers(0, 2**32 - 1)
)
def test_a_row_in_a_batch_has_the_bits_of_the_row_alone(
    rows: list[tuple[SamplingSpec, np.ndarray, np.ndarray]], seed: int
) -> None:
    specs, prompts, outputs = (list(column) for column in zip(*rows, strict=True))
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(scale=2, size=(len(rows), VOCAB)), 1).astype(np.float32)
    bitmask = rng.integers(-(2**31), 2**31, size=(len(rows), 4)).astype(np.int32)
    bitmask[rng.random(len(rows)) < 0.5] = -1
    before = logits.copy()

    together = sample(logits, specs, prompts, outputs, bitmask)

    np.testing.assert_array_equal(logits, before)
    for i, spec in enumerate(specs):
        alone = sample(
            logits[i : i + 1], [spec], prompts[i : i + 1], outputs[i : i + 1], bitmask[i : i + 1]
        )
        assert together.token_ids[i] == alone.token_ids[0]
        if alone.logprobs is not None:
            assert together.logprobs is not None
            width = alone.logprobs.token_ids.shape[1]
            for name in ("token_ids", "logprobs"):
                np.testing.assert_array_equal(
                    getattr(together.logprobs, name)[i, :width], getattr(alone.logprobs, name)[0]
                )
            assert together.logprobs.ranks[i] == alone.logprobs.ranks[0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(0, VOCAB))
def test_prompt_logprobs_do_not_depend_on_how_the_prompt_is_cut(
    seed: int, rows: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=(rows, VOCAB)), 1).astype(np.float32)
    following = rng.integers(0, VOCAB, size=rows)
    cut = int(rng.integers(1, rows))

    whole = prompt_logprobs(logits, following, k)

    parts = [
        prompt_logprobs(logits[:cut], following[:cut], k),
        prompt_logprobs(logits[cut:], following[cut:], k),
    ]
    for name in ("token_ids", "logprobs", "ranks"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), joined)


@pytest.mark.long
@settings(max_examples=100)
@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30).map(
        lambda values: np.array([values], dtype=np.float32)
    )
)
def test_sort_keys_order_any_floats_and_put_the_first_of_equals_on_top(values: np.ndarray) -> None:
    descending = np.sort(sort_keys(values), axis=1)[:, ::-1]

    columns = key_columns(descending)

    np.testing.assert_array_equal(columns[0], np.argsort(-values[0], kind="stable"))
