"""Groups between models and tenants, second by second."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.analysis.tenants.assignment import assigned, places
from serving.analysis.tenants.fleet_groups import FleetGroups
from serving.analysis.tenants.job_pool import JobPool
from serving.analysis.tenants.tenant import Submission
from serving.policy.day_night.handover import HandoverPhase
from tests.serving.analysis.day.days import HANDOVER
from tests.serving.analysis.tenants.fleets import (
    IDLE_WATTS,
    SLOWER,
    batch,
    batch_pool,
    elastic,
    fleet,
    job,
    job_pool,
    seconds_of,
    uses,
)

S, D, T, R = (
    HandoverPhase.SERVING,
    HandoverPhase.DRAINING,
    HandoverPhase.TRAINING,
    HandoverPhase.RESTORING,
)


def phases(of: FleetGroups) -> tuple[HandoverPhase, ...]:
    return tuple(of.phase(group) for group in range(of.groups))


def test_a_group_drains_and_reads_the_weights_of_another_model() -> None:
    two = fleet(first=(0, 0, 0, 1))
    two.want(uses("aabb"))
    times = two.advance(200.0)

    # 30 s to leave the first model, 90 s to read the second.
    assert times.models[0].leaving_s == 30
    assert times.models[1].restoring_s == 90
    assert times.models[0].serving_s == 2 * 200
    assert times.models[1].serving_s == 200 + 80
    assert times.models[1].joules == pytest.approx(600)
    assert two.totals[0].left == two.totals[1].came_back == 1
    assert seconds_of(times) == 4 * 200


def test_a_group_whose_way_to_another_model_is_called_off_serves_on() -> None:
    two = fleet(first=(0, 0, 0, 1))
    two.want(uses("aabb"))
    two.advance(20.0)
    two.want(uses("aaab"))
    assert phases(two) == (S, S, S, S)
    assert two.serving(0) == 3


def test_every_model_keeps_a_group_until_another_one_serves_it() -> None:
    two = fleet(first=(0, 0, 0, 1), models=(HANDOVER, replace(SLOWER, restore_s=20.0)))
    two.want(uses("aaba"))
    two.advance(40.0)
    assert two.serving(1) == 1  # the last one waits for the group that is on its way
    two.advance(1_000.0)
    assert (two.serving(0), two.serving(1)) == (3, 1)
    assert phases(two) == (S, S, S, S)


def test_a_job_saves_before_a_group_goes_to_another_tenant() -> None:
    first, second = job_pool(job(name="first")), job_pool(job(name="second", least=1))
    two = fleet(first, second)
    two.want(uses("a000"))
    two.advance(100.0)  # 30 s to drain, 20 s to start, 50 s of training
    assert first.trained == 30 * 50
    two.want(uses("a001"))
    times = two.advance(200.0)

    # 10 s to save; then both start in 20 s, and train for 70.
    assert times.tenants[0].paused_s == 3 * 10 + 2 * 20
    assert times.tenants[1].paused_s == 20
    assert times.tenants[0].tokens == 20 * 70
    assert times.tenants[1].tokens == 10 * 70
    assert first.totals.came_back == 1
    assert first.totals.job_starts == 2


def test_an_elastic_job_goes_on_without_a_checkpoint() -> None:
    own = job_pool(job(resharding=elastic()))
    night = fleet(own)
    night.want(uses("a000"))
    night.advance(100.0)
    night.want(uses("aa00"))
    times = night.advance(200.0)

    # A second to end the step, 5 to move its state; 94 s on two groups.
    assert times.tenants[0].paused_s == 3 * 6
    assert times.tenants[0].tokens == 20 * 94
    assert own.totals.job_starts == own.resizes == 1
    night.want(uses("aaa0"))  # too few: it saves
    morning = night.advance(300.0)
    assert morning.tenants[0].paused_s == 2 * 10
    assert own.totals.tokens_undone == 0
    assert own.trained == 30 * 50 + 20 * 94


def test_a_state_between_two_sizes_is_lost_with_a_group_that_keeps_it() -> None:
    own = job_pool(job(6, resharding=elastic(6)), 6)
    night = fleet(own, first=(0,) * 6)
    night.want(uses("aa0000"))
    night.advance(100.0)
    assert own.trained == 40 * 50
    night.want(uses("a0a000"))  # it ends a step, moves its state, and waits for group 1
    night.advance(120.0)
    night.want(uses("a0a00-"))
    night.advance(130.0)

    assert own.totals.tokens_undone == 40 * 50
    assert own.trained == 0
    assert own.totals.job_starts == 2  # anew, from its checkpoint


def test_a_job_ends_when_its_tokens_are_trained_and_saved() -> None:
    own = job_pool(job(tokens=600.0))
    night = fleet(own)
    night.want(uses("a000"))
    times = night.advance(200.0)

    # 30 s to drain, 20 s to start, 20 s of 30 tokens/s, 10 s to save.
    assert own.trained == pytest.approx(600)
    assert own.finished_s == pytest.approx(80)
    assert own.is_done
    assert times.tenants[-1].idle_s == pytest.approx(3 * 120)
    assert own.totals.came_back == 0  # it gave back what it needed no more


def test_a_job_that_saves_for_long_is_waited_for() -> None:
    slow = job()
    slow.trained.save_s[:] = 100.0
    own = job_pool(slow)
    night = fleet(own)
    night.want(uses("a000"))
    night.advance(100.0)
    night.want(uses("aaaa"))
    night.advance(210.0)

    assert own.totals.tokens_undone == 0
    assert own.trained == 30 * 50


def test_a_batch_group_loads_and_serves_by_itself() -> None:
    own = batch_pool(batch())
    night = fleet(own)
    night.want(uses("aa00"))
    times = night.advance(180.0)

    # 30 s to drain, 50 s to load, 100 s of 4 requests/s; 200 of the 600 are left.
    assert own.left == [pytest.approx(200)]
    assert times.tenants[0].tokens == pytest.approx(5 * 400)
    assert times.tenants[0].joules == pytest.approx(2 * 6_000 + 2 * 250 * 100)
    night.want(uses("aaa0"))  # half of 40 running requests are lost
    assert own.left == [pytest.approx(220)]
    assert own.totals.tokens_undone == 5 * 20
    night.advance(600.0)

    assert own.is_done
    assert own.done_s == [pytest.approx(180 + 110)]
    assert own.in_time == [pytest.approx(600)]


def test_requests_after_their_deadline_are_late_and_served_all_the_same() -> None:
    own = batch_pool(
        batch(
            4,
            Submission(at_s=0.0, requests=300.0, due_s=130.0),
            Submission(at_s=200.0, requests=10.0, due_s=1_000.0),
        )
    )
    night = fleet(own)
    night.want(uses("aaa0"))
    night.advance(500.0)

    assert own.in_time == [pytest.approx(2 * 50), pytest.approx(10)]
    assert own.done_s == [pytest.approx(80 + 150), pytest.approx(80 + 155)]


def test_groups_without_a_tenant_idle() -> None:
    night = fleet()
    night.want(uses("aa--"))
    times = night.advance(100.0)

    assert times.tenants[-1].idle_s == 2 * 70
    assert times.tenants[-1].joules == 2 * 70 * IDLE_WATTS


def test_a_use_for_each_group_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="uses"):
        fleet().want(uses("aa"))


SUBMISSIONS = (
    Submission(at_s=0.0, requests=500.0, due_s=900.0),
    Submission(at_s=300.0, requests=900.0, due_s=5_000.0),
)
LOOKS = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(1, 2), st.lists(st.integers(0, 3), min_size=3, max_size=3)
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@given(looks=LOOKS, is_elastic=st.booleans(), look_s=st.sampled_from([15.0, 45.0, 200.0]))
@settings(max_examples=150, deadline=None)
def test_a_group_has_one_user_and_nothing_is_lost(
    looks: list[tuple[int, int, list[int]]], is_elastic: bool, look_s: float
) -> None:
    size = 6
    jobs = [
        job_pool(job(size, name="endless", resharding=elastic(size) if is_elastic else None), size),
        job_pool(job(size, name="ends", least=1, tokens=4_000.0), size),
    ]
    requests = batch_pool(batch(size, *SUBMISSIONS), size)
    night = fleet(*jobs, requests, first=(0, 0, 0, 0, 1, 1))
    tokens = np.zeros(3)
    for look, (one, two, asked) in enumerate(looks):
        free = size - one - two
        given_groups = []
        for count in asked:
            given_groups.append(min(count, free))
            free -= given_groups[-1]
        night.want(assigned(places(night), (one, two), given_groups))
        times = night.advance((look + 1) * look_s)
        tokens += [each.tokens for each in times.tenants[:3]]

        assert seconds_of(times) == pytest.approx(size * look_s)
        _check_users(night)
    for pool_of, done in zip(night.pools, tokens, strict=False):
        assert pool_of.totals.tokens_undone <= done + 1e-6
        if isinstance(pool_of, JobPool):
            assert pool_of.trained == pytest.approx(done - pool_of.totals.tokens_undone)
    served = tokens[2] - requests.totals.tokens_undone
    assert sum(requests.left) == pytest.approx(1_400 - served / 5)
    for left, in_time, of in zip(requests.left, requests.in_time, SUBMISSIONS, strict=True):
        assert 0 <= in_time <= of.requests - left + 1e-6


def _check_users(night: FleetGroups) -> None:
    for group in range(night.groups):
        held = [
            number
            for number, each in enumerate(night.pools)
            if each.state.groups[group].phase is not S or each.state.groups[group].desired is not S
        ]
        assert held == ([] if night.bound[group] is None else [night.bound[group]]) or (
            not held and night.phase(group) is S
        )
    at_jobs: list[int] = []
    for each in night.pools:
        job_of = each.state.job
        if job_of.phase.alive:
            at_jobs += job_of.chips
            assert all(each.state.groups[chip].phase is T for chip in job_of.chips)
    assert len(at_jobs) == len(set(at_jobs))
    assert all(night.serving(model) >= 1 for model in range(2))


@pytest.mark.long
@given(looks=LOOKS)
@settings(max_examples=100, deadline=None)
def test_numbers_are_kept_and_as_few_groups_move_as_can_be(
    looks: list[tuple[int, int, list[int]]],
) -> None:
    size = 6
    night = fleet(
        *(job_pool(job(size, name=name), size) for name in ("x", "y", "z")),
        first=(0, 0, 0, 0, 1, 1),
    )
    for look, (one, two, asked) in enumerate(looks):
        free = size - one - two
        counts = []
        for count in asked:
            counts.append(min(count, free))
            free -= counts[-1]
        at = places(night)
        found = assigned(at, (one, two), counts)
        for model, count in enumerate((one, two)):
            there = [n for n, place in enumerate(at) if place.model == model]
            serving = [n for n in there if not at[n].is_leased]
            assert sum(use.model == model for use in found) == count
            stay = sum(found[n].model == model for n in serving)
            assert stay == min(count, len(serving))
        for tenant, count in enumerate(counts):
            own = [n for n, place in enumerate(at) if place.tenant == tenant]
            assert sum(use.tenant == tenant for use in found) == count
            assert sum(found[n].tenant == tenant for n in own) == min(count, len(own))
        night.want(found)
        night.advance((look + 1) * 50.0)
