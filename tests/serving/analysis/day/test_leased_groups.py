"""Groups on their way between serving and training, second by second."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.analysis.day.leased_groups import LeasedGroups
from serving.policy.day_night.handover import HandoverPhase
from serving.policy.day_night.handover_machine import Desired, wishes
from tests.serving.analysis.day.days import HANDOVER, trained

S, T, R = HandoverPhase.SERVING, HandoverPhase.TRAINING, HandoverPhase.RESTORING


def groups(count: int = 4) -> LeasedGroups:
    return LeasedGroups(trained=trained(count), handover=HANDOVER, group_idle_watts=100.0)


def test_a_night_by_hand() -> None:
    lent = groups()
    assert lent.want(1)
    night = lent.advance(100.0)
    # 30 s to drain three groups, nothing to save, 20 s to start, 50 s of training at 30 tokens/s.
    assert night.serving_s == 100
    assert night.leaving_s == 3 * 30
    assert night.paused_s == 3 * 20
    assert night.training_s == 3 * 50
    assert night.tokens == 30 * 50
    assert night.joules == pytest.approx(3 * 2_000 + 3 * 300 * 50)

    assert lent.want(2)
    morning = lent.advance(200.0)
    # 10 s to save, then one group is away for 60 s and the others start again in 20.
    assert morning.paused_s == 3 * 10 + 2 * 20
    assert morning.restoring_s == 60
    assert morning.training_s == 2 * 70
    assert morning.tokens == 20 * 70
    assert morning.serving_s == 100 + 30
    assert morning.joules == pytest.approx(3_000 + 600 + 2 * 2_000 + 2 * 300 * 70)
    assert lent.totals.left == 3
    assert lent.totals.came_back == 1
    assert lent.totals.job_starts == 2
    assert lent.totals.tokens_lost == 30 * 20 + 30 * 10 + 20 * 20


def test_too_few_groups_for_the_state_are_lent_and_idle() -> None:
    lent = groups()
    lent.want(3)
    times = lent.advance(100.0)

    assert times.idle_s == 70
    assert times.tokens == 0
    assert times.joules == pytest.approx(70 * 100.0)
    assert lent.totals.job_starts == 0


def test_groups_called_back_while_the_job_starts_need_not_save() -> None:
    lent = groups()
    lent.want(2)
    lent.advance(40.0)  # 10 s into the start
    lent.want(4)
    times = lent.advance(101.0)

    assert times.paused_s == 0
    assert times.restoring_s == 2 * 60
    assert lent.each.phases == (S, S, S, S)


def test_those_that_come_back_count_as_serving_at_once() -> None:
    lent = groups()
    lent.want(1)
    lent.advance(100.0)
    lent.want(3)

    assert lent.each.phases == (S, T, T, T)
    assert lent.serving_or_coming == 3
    assert not lent.want(3)


def test_a_group_that_is_asked_back_while_it_drains_stays_where_it_is() -> None:
    lent = groups()
    lent.want(1)
    lent.advance(10.0)
    lent.want(3)
    times = lent.advance(100.0)

    assert lent.each.phases == (S, S, S, T)
    assert times.serving_s == pytest.approx(3 * 90)
    assert times.restoring_s == 0
    assert lent.totals.left == 1
    assert lent.left == [(0.0, 1)]


def test_the_job_waits_for_a_group_that_still_leaves_and_trains_meanwhile() -> None:
    lent = groups()
    lent.want(2)
    lent.advance(60.0)  # 10 s of training
    lent.want(1)
    times = lent.advance(100.0)

    # 30 s until the third is empty, in which the two train; then they save, and it has no job.
    assert times.training_s == 2 * 30
    assert times.paused_s == 2 * 10
    assert times.idle_s == 10
    assert lent.advance(120.0).paused_s == 3 * 20
    assert lent.totals.job_starts == 2


def test_a_job_that_takes_minutes_to_save_is_waited_for() -> None:
    slow = trained(4)
    slow.save_s[:] = 200.0
    lent = LeasedGroups(trained=slow, handover=HANDOVER, group_idle_watts=100.0)
    lent.want(2)
    lent.advance(100.0)
    lent.want(4)
    times = lent.advance(400.0)

    assert times.paused_s == 2 * 200
    assert lent.each.phases == (S, S, S, S)


def test_the_last_group_that_serves_is_not_drained_before_another_is_back() -> None:
    lent = groups()
    lent.want(1)
    lent.advance(100.0)
    lent.want(3)
    lent.advance(110.0)
    lent.take(Desired(phases=(T, S, T)))  # the one that serves is to leave, two of four return
    lent.advance(120.0)

    assert lent.each.phases == (S, R, R, T)
    assert lent.each.groups[0].failures.count > 0
    lent.advance(1_000.0)
    assert lent.each.phases == (T, S, S, T)


def test_groups_go_the_same_way_together_as_one_by_one() -> None:
    """Against the machine of single groups, which `take` alone does not join."""
    together, single = groups(6), groups(6)
    for at_s, serving in ((100.0, 2), (125.0, 5), (160.0, 1), (240.0, 6), (700.0, 3)):
        together.want(serving)
        single.take(Desired(phases=wishes(single.state, serving)))
        one, other = together.advance(at_s), single.advance(at_s)
        assert len(together.state.groups) < len(single.state.groups) == 6
        assert together.each.phases == single.each.phases
        assert together.key == single.key
        for each in fields(one):
            found, wanted = (np.array(getattr(times, each.name)) for times in (one, other))
            assert found == pytest.approx(wanted, abs=1e-9)
    assert together.totals == single.totals


@given(
    wanted=st.lists(st.tuples(st.integers(1, 6), st.floats(1.0, 90.0)), min_size=1, max_size=12),
    cuts=st.integers(1, 4),
)
def test_group_seconds_are_conserved_and_do_not_depend_on_the_intervals(
    wanted: list[tuple[int, float]], cuts: int
) -> None:
    whole, pieces = groups(6), groups(6)
    now_s = 0.0
    for wish, seconds in wanted:
        whole.want(wish)
        pieces.want(wish)
        once = whole.advance(now_s + seconds)
        parts = [pieces.advance(now_s + seconds * (cut + 1) / cuts) for cut in range(cuts)]
        now_s += seconds
        uses = ("serving_s", "leaving_s", "restoring_s", "paused_s", "training_s", "idle_s")
        assert sum(getattr(once, use) for use in uses) == pytest.approx(6 * seconds)
        for name in ("serving_s", "training_s", "paused_s", "tokens", "joules"):
            added = sum(getattr(part, name) for part in parts)
            assert added == pytest.approx(getattr(once, name), abs=1e-6)
        assert sum(length_s * groups for length_s, groups in once.parts) == pytest.approx(
            once.serving_s
        )
        assert sum(share for share, _ in once.shares) == pytest.approx(1.0)
    whole.want(6)
    whole.advance(now_s + 30 + 10 + 20)
    whole.want(6)
    whole.advance(now_s + 1_000)
    assert whole.each.phases == (S,) * 6


def test_a_wish_for_more_groups_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 4 groups"):
        groups().want(5)
    with pytest.raises(ConfigError, match="1 to 4 groups"):
        groups().want(0)
