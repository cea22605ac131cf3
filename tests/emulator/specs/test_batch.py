from typing import Any

import numpy as np
import pytest

from emulator.specs.batch import StepBatch


def int64s(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def a_batch(**changes: Any) -> StepBatch:
    fields: dict[str, Any] = {
        "ranks": 3,
        "rank": int64s(0, 2, 0),
        "new_tokens": int64s(1, 5, 2),
        "context_tokens": int64s(7, 0, 3),
        "logit_rows": int64s(2, 0, 1),
    }
    return StepBatch(**{**fields, **changes})


def test_tokens_are_summed_by_rank_and_a_rank_may_be_idle() -> None:
    assert a_batch().tokens_by_rank().tolist() == [3, 0, 5]


def test_a_batch_may_be_empty() -> None:
    empty = a_batch(
        rank=int64s(), new_tokens=int64s(), context_tokens=int64s(), logit_rows=int64s(0, 0, 0)
    )

    assert empty.tokens_by_rank().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 0}, "has ranks"),
        ({"rank": np.zeros((3, 1), dtype=np.int64)}, "row per request"),
        ({"rank": int64s(0, 3, 0)}, "one of 3 ranks"),
        ({"rank": int64s(0, -1, 0)}, "one of 3 ranks"),
        ({"new_tokens": int64s(1, 0, 2)}, "at least one new token"),
        ({"new_tokens": int64s(1, 5)}, "new_tokens is int64"),
        ({"new_tokens": np.ones(3)}, "new_tokens is int64"),
        ({"context_tokens": int64s(7, -1, 3)}, "not negative"),
        ({"logit_rows": int64s(2, 0)}, "logit_rows is int64"),
        ({"logit_rows": int64s(4, 0, 1)}, "some of its new tokens"),
        ({"logit_rows": int64s(2, 1, 1)}, "some of its new tokens"),
        ({"logit_rows": int64s(-1, 0, 1)}, "some of its new tokens"),
    ],
)
def test_nonsense_is_refused_when_the_batch_is_made(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        a_batch(**changes)
