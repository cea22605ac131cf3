import numpy as np
import pytest
from scipy.stats import CensoredData, ecdf

from serving.policy.admission.answer_lengths import (
    EDGES,
    AnswerLengths,
    expected_length,
    made_in_ranges,
)

NONE = np.array([])


def test_tokens_are_counted_in_the_ranges_in_which_they_were_made() -> None:
    counted = made_in_ranges(np.array([1.0, 3.0]))

    assert EDGES[:4].tolist() == [0, 1, 2, 3]
    assert counted[:4].tolist() == [2, 1, 1, 0]
    assert counted.sum() == 4


def test_an_answer_that_stands_for_three_counts_three_times() -> None:
    tokens = np.array([700.0, 1.0, 30.0])
    weights = np.array([1.0, 3.0, 2.0])

    counted = made_in_ranges(tokens, weights)

    assert counted == pytest.approx(made_in_ranges(np.repeat(tokens, [1, 3, 2])))


def test_before_anything_ended_answers_go_on_to_what_was_asked_for() -> None:
    hazard = AnswerLengths().hazard(np.array([500.0]))

    assert not hazard.any()
    assert expected_length(hazard, 800) == 800


def test_answers_that_had_to_end_say_nothing_of_an_end_by_themselves() -> None:
    lengths = AnswerLengths()
    for _ in range(50):
        lengths.add(128, by_itself=False)

    assert expected_length(lengths.hazard(NONE), 1_000) == 1_000


def test_long_answers_count_while_they_still_run() -> None:
    lengths = AnswerLengths()
    for _ in range(10):
        lengths.add(10, by_itself=True)

    alone = expected_length(lengths.hazard(NONE), 1_000)
    beside = expected_length(lengths.hazard(np.full(10, 500.0)), 1_000)

    assert beside > 10 * alone


@pytest.mark.parametrize("shape", ["exponential", "lognormal", "bimodal"])
def test_the_share_that_lasts_is_that_of_kaplan_and_meier(shape: str) -> None:
    rng = np.random.default_rng(3)
    drawn = {
        "exponential": rng.exponential(100, 400),
        "lognormal": rng.lognormal(4, 1, 400),
        "bimodal": np.where(rng.random(400) < 0.2, 600, 20) + rng.exponential(5, 400),
    }[shape].round() + 1
    bound = rng.integers(20, 500, 400)  # what was asked for
    tokens, by_itself = np.minimum(drawn, bound), drawn < bound
    lengths = AnswerLengths()
    for made, ends in zip(tokens, by_itself, strict=True):
        lengths.add(made, by_itself=bool(ends))

    lasting = np.exp(-lengths.hazard(NONE))
    sample = CensoredData(tokens[by_itself], right=tokens[~by_itself])
    reference = ecdf(sample).sf
    at = np.array([10, 20, 50, 100, 200, 400])

    # Ranges of an eighth of an octave, and old answers that count less, cost a few percent.
    assert np.interp(at, EDGES, lasting) == pytest.approx(reference.evaluate(at), abs=0.06)
