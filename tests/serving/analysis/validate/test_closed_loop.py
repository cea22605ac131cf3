from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.validate.closed_loop import LoopRows, closed_loop


def one(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float64)


ONE_USER = LoopRows(
    users=one(1),
    output_tokens=one(100),
    disaggregated=np.array([True]),
    prefill_workers=one(1),
    decode_workers=one(1),
    slots=one(1_000),
    batches=np.array([[1.0, 2.0, 4.0]]),
    decode_s=np.array([[0.010, 0.012, 0.016]]),
    tokens_per_step=one(1),
    solo_s=one(0.2),
    full_s=one(0.15),
    solo_steal_s=one(0.2),
    full_steal_s=one(0.15),
    front_end_s=one(0.05),
    handover_s=one(0.0),
)


def test_a_first_token_waits_for_the_cache_to_be_handed_over() -> None:
    far = closed_loop(replace(ONE_USER, handover_s=one(0.03)))

    assert far.steady_ttft_s[0] == pytest.approx(0.28)
    assert far.tpot_s[0] == pytest.approx(0.010)


def test_one_user_waits_for_its_prompt_alone_and_decodes_alone_by_hand() -> None:
    found = closed_loop(ONE_USER)

    assert found.tpot_s[0] == pytest.approx(0.010)
    assert found.steady_ttft_s[0] == pytest.approx(0.25)
    # the run's first round adds half a prompt to one request of ten
    assert found.ttft_s[0] == pytest.approx(0.25 + 0.15 / 2 / 10)
    assert found.requests_per_s[0] == pytest.approx(1 / (0.2575 + 1.0))


def test_a_batch_between_two_of_the_grid_takes_a_time_between_theirs_by_hand() -> None:
    # three users who decode all the time: half way between 12 and 16 ms
    rows = replace(
        ONE_USER,
        users=one(3),
        output_tokens=one(1e6),
        front_end_s=one(0),
        solo_s=one(1e-3),
        full_s=one(1e-3),
    )

    assert closed_loop(rows).tpot_s[0] == pytest.approx(0.014, rel=1e-3)


def test_accepted_guesses_divide_a_token_time() -> None:
    found = closed_loop(replace(ONE_USER, tokens_per_step=one(1.6)))

    assert found.tpot_s[0] == pytest.approx(0.010 / 1.6)


def test_on_shared_workers_decodes_wait_for_prompts() -> None:
    many = replace(ONE_USER, users=one(4))
    apart, shared = closed_loop(many), closed_loop(replace(many, disaggregated=np.array([False])))

    assert shared.tpot_s[0] > 1.3 * apart.tpot_s[0]


def test_prefill_workers_that_cannot_keep_up_set_the_rate() -> None:
    found = closed_loop(replace(ONE_USER, users=one(400), slots=one(1e6)))

    assert found.requests_per_s[0] == pytest.approx(1 / 0.15, rel=0.01)
    assert found.ttft_s[0] > 20  # most users wait for their prompt


def test_users_beyond_the_cache_wait_and_do_not_decode() -> None:
    rows = replace(ONE_USER, users=one(64), slots=one(3), solo_s=one(0.001), full_s=one(0.001))

    found = closed_loop(rows)

    assert found.batch[0] <= 3 * (1 + 1e-9)
    assert found.tpot_s[0] <= 0.016
    assert found.ttft_s[0] > 10 * ONE_USER.solo_s[0]


@pytest.mark.long
@given(
    users=st.integers(1, 5_000),
    workers=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    slots=st.integers(1, 2_000),
    osl=st.floats(50, 8_000),
    solo_s=st.floats(0.001, 5.0),
    disaggregated=st.booleans(),
)
def test_users_are_conserved_and_nobody_is_faster_than_alone(
    users: int,
    workers: tuple[int, int],
    slots: int,
    osl: float,
    solo_s: float,
    disaggregated: bool,
) -> None:
    grid = np.array([[1.0, 8.0, 64.0, 512.0, 4_096.0]])
    rows = LoopRows(
        users=one(users),
        output_tokens=one(osl),
        disaggregated=np.array([disaggregated]),
        prefill_workers=one(workers[0]),
        decode_workers=one(workers[1] if disaggregated else workers[0]),
        slots=one(slots),
        batches=grid,
        decode_s=0.005 + 0.0001 * grid,
        tokens_per_step=one(1),
        solo_s=one(solo_s),
        full_s=one(solo_s * 0.8),
        solo_steal_s=one(solo_s),
        full_steal_s=one(solo_s * 0.8),
        front_end_s=one(0.05),
        handover_s=one(0.0),
    )

    found = closed_loop(rows)

    busy_s = found.ttft_s[0] + osl * found.tpot_s[0]
    assert found.requests_per_s[0] * busy_s == pytest.approx(users)
    assert found.tpot_s[0] >= 0.0051 * (1 - 1e-6)
    assert found.batch[0] <= min(users, slots * rows.decode_workers[0]) + 1e-6


def test_rows_do_not_see_each_other() -> None:
    fields = {
        name: np.concatenate([getattr(ONE_USER, name)] * 2)
        for name in LoopRows.__dataclass_fields__
    }
    fields["users"] = np.array([1.0, 300.0])

    both = closed_loop(LoopRows(**fields))

    assert both.tpot_s[0] == closed_loop(ONE_USER).tpot_s[0]
    assert both.tpot_s[1] == closed_loop(replace(ONE_USER, users=one(300))).tpot_s[0]
