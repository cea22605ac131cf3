import heapq
import math

import numpy as np
import pytest

from serving.policy.admission.answer_lengths import EDGES, AnswerLengths
from serving.policy.admission.seat_waits import seat_waits


def test_answers_of_known_length_end_when_their_tokens_are_made() -> None:
    """Four answers with 10, 20, 30 and 1,000 tokens left, at 10 tokens a second each."""
    waits = seat_waits(
        AnswerLengths().hazard(np.array([])),
        made_tokens=np.array([100.0, 50.0, 0.0, 0.0]),
        left_tokens=np.array([10.0, 20.0, 30.0, 1_000.0]),
        starting=0,
        known_ends=3_000,
        tokens_per_s=10.0,
        horizon_s=6.2,
    )

    assert [waits.wait_s(ends) for ends in (1, 2, 3)] == pytest.approx([1, 2, 3], abs=0.21)


def test_nobody_ends_when_nothing_says_so() -> None:
    waits = seat_waits(
        AnswerLengths().hazard(np.array([])),
        made_tokens=np.array([5.0]),
        left_tokens=np.array([1e6]),
        starting=0,
        known_ends=3_000,
        tokens_per_s=10.0,
        horizon_s=1.0,
    )

    assert waits.wait_s(1) == math.inf


def test_an_answer_that_stands_for_many_is_as_many() -> None:
    lengths = AnswerLengths()
    for tokens in range(1, 400):
        lengths.add(tokens, by_itself=True)
    made, left = np.array([10.0, 300.0, 80.0]), np.array([500.0, 20.0, 90.0])
    weights = np.array([7.0, 1.0, 12.0])

    def ended(times: np.ndarray | None) -> np.ndarray:
        repeated = [each if times is None else np.repeat(each, times) for each in (made, left)]
        return seat_waits(
            lengths.hazard(np.array([])),
            made_tokens=repeated[0],
            left_tokens=repeated[1],
            weights=weights if times is None else 1.0,
            starting=2,
            known_ends=400,
            tokens_per_s=50.0,
            horizon_s=4.0,
        ).sure

    assert ended(None) == pytest.approx(ended(weights.astype(int)))


@pytest.mark.long
def test_a_wait_is_what_99_of_100_draws_stay_within() -> None:
    """Answers of exponential lengths, mean 100: 64 seats, and the 40th end from now."""
    rng = np.random.default_rng(5)
    lengths = AnswerLengths()
    for drawn in rng.exponential(100, 3_000):
        lengths.add(drawn + 1, by_itself=True)
    waits = seat_waits(
        lengths.hazard(np.array([])),
        made_tokens=np.full(64, 40.0),
        left_tokens=np.full(64, 1e6),
        starting=0,
        known_ends=3_000,
        tokens_per_s=50.0,
        horizon_s=4.0,
    )

    def drawn_wait_s() -> float:
        ends = list(rng.exponential(100, 64))  # without memory: 40 tokens are no help
        heapq.heapify(ends)
        for _ in range(39):
            end = heapq.heappop(ends)
            heapq.heappush(ends, end + rng.exponential(100))
        return ends[0] / 50.0

    drawn_s = np.array([drawn_wait_s() for _ in range(2_000)])
    assert waits.wait_s(40) == pytest.approx(np.percentile(drawn_s, 99), rel=0.1)
    assert waits.mean_wait_s(40) == pytest.approx(drawn_s.mean(), rel=0.1)


def test_what_few_ends_tell_is_less_sure() -> None:
    def wait_s(known_ends: float) -> float:
        return seat_waits(
            EDGES / 100.0,
            made_tokens=np.full(64, 40.0),
            left_tokens=np.full(64, 1e6),
            starting=0,
            known_ends=known_ends,
            tokens_per_s=50.0,
            horizon_s=4.0,
        ).wait_s(40)

    assert wait_s(10) > 1.3 * wait_s(1_000)
