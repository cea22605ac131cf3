"""The pace of answers, by hand."""

import pytest

from serving.server.batch.answer_pace import AnswerPace


def test_answers_count_by_the_time_in_which_some_ran() -> None:
    pace = AnswerPace()
    assert pace.requests_per_s is None
    pace.run(0.0, is_busy=True)
    for _ in range(20):
        pace.answered()
    pace.run(10.0, is_busy=False)
    assert pace.requests_per_s == pytest.approx(2.0, rel=0.02)
    pace.run(5_000.0, is_busy=True)  # what does not run has no pace
    assert pace.requests_per_s == pytest.approx(2.0, rel=0.02)


def test_a_pace_that_falls_is_seen_within_the_horizon() -> None:
    pace = AnswerPace()
    for second in range(2_000):
        pace.run(float(second), is_busy=True)
        pace.answered()
        if second < 1_000:
            pace.answered()
    assert pace.requests_per_s is not None
    assert 1.0 < pace.requests_per_s < 1.5
