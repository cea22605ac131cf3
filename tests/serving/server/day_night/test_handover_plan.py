"""What is to be done next, case by case."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.day_night.handover import (
    Action,
    Failures,
    HandoverLimits,
    JobObserved,
    JobPhase,
    Phase,
)
from serving.server.day_night.handover_plan import Group, JobSeen, Step, groups_of, plan, wishes
from serving.wire.machine_state import LeaseState
from tests.serving.server.day_night.lending_engine import a_lease

LIMITS = HandoverLimits()
S, D, T, R = Phase.SERVING, Phase.DRAINING, Phase.TRAINING, Phase.RESTORING
NOW_S = 1000.0


def groups(*phases: Phase, lost: tuple[int, ...] = ()) -> tuple[Group, ...]:
    """Groups of two chips in these phases."""
    leases: list[LeaseState] = []
    for number, phase in enumerate(phases):
        if phase is not S:
            chips = (2 * number, 2 * number + 1)
            kept = tuple(chip for chip in lost if chip in chips)
            lease = a_lease(len(leases) + 1, chips)
            leases.append(msgspec.structs.replace(lease, phase=phase, lost_chips=kept))
    return groups_of(2 * len(phases), 2, leases)


def a_job(phase: JobPhase, *chips: int, told_s: float | None = None, starts: int = 0) -> JobSeen:
    observed = JobObserved(
        phase=phase,
        heard_s=NOW_S,
        stop_asked_s=told_s,
        starts=Failures(count=starts, last_s=NOW_S - 1000),
    )
    return JobSeen(observed=observed, chips=chips)


NO_JOB = a_job(JobPhase.ABSENT)


def do(
    seen: tuple[Group, ...],
    desired: list[Phase],
    job: JobSeen,
    tries: dict[int, Failures] | None = None,
) -> list[tuple[Action, object]]:
    """Each step as its action with the group's number or the job's chips."""
    made: tuple[Step, ...] = plan(
        seen, desired, job, handovers=tries or {}, now_s=NOW_S, limits=LIMITS
    )
    return [(step.action, step.chips if step.group is None else step.group.number) for step in made]


def test_by_day_nothing_is_done() -> None:
    assert do(groups(S, S), [S, S], NO_JOB) == []


def test_the_job_waits_for_groups_that_are_on_their_way() -> None:
    drains = [(Action.DRAIN, 1), (Action.DRAIN, 2)]
    assert do(groups(S, S, S), [S, T, T], NO_JOB) == drains
    assert do(groups(S, D, T), [S, T, T], NO_JOB) == []
    assert do(groups(S, T, T), [S, T, T], NO_JOB) == [(Action.START_JOB, (2, 3, 4, 5))]


def test_the_job_does_not_wait_for_a_group_that_is_refused() -> None:
    refused = {1: Failures(count=1, last_s=NOW_S)}
    begin = [(Action.START_JOB, (4, 5))]
    assert do(groups(S, S, T), [S, T, T], NO_JOB, refused) == begin


def test_in_the_morning_the_job_ends_before_its_chips_go() -> None:
    running = a_job(JobPhase.RUNNING, 2, 3, 4, 5)
    assert do(groups(S, T, T), [S, S, S], running) == [(Action.STOP_JOB, ())]
    told = a_job(JobPhase.SAVING, 2, 3, 4, 5, told_s=NOW_S - 1)
    assert do(groups(S, T, T), [S, S, S], told) == []
    late = a_job(JobPhase.SAVING, 2, 3, 4, 5, told_s=NOW_S - LIMITS.stop_s)
    assert do(groups(S, T, T), [S, S, S], late) == [(Action.KILL_JOB, ())]
    ended = a_job(JobPhase.STOPPED, 2, 3, 4, 5)
    resumes = [(Action.RESUME, 1), (Action.RESUME, 2)]
    assert do(groups(S, T, T), [S, S, S], ended) == resumes


def test_one_group_goes_and_the_job_goes_on_with_the_others() -> None:
    running = a_job(JobPhase.RUNNING, 2, 3, 4, 5)
    assert do(groups(S, T, T), [S, S, T], running) == [(Action.STOP_JOB, ())]
    ended = a_job(JobPhase.STOPPED, 2, 3, 4, 5)
    both = [(Action.START_JOB, (4, 5)), (Action.RESUME, 1)]
    assert do(groups(S, T, T), [S, S, T], ended) == both
    # It runs on the others before the group has begun to come back.
    fewer = a_job(JobPhase.RUNNING, 4, 5)
    assert do(groups(S, T, T), [S, S, T], fewer) == [(Action.RESUME, 1)]


def test_another_group_comes_and_the_job_begins_anew_with_it() -> None:
    running = a_job(JobPhase.RUNNING, 4, 5)
    assert do(groups(S, T, T), [S, T, T], running) == [(Action.STOP_JOB, ())]
    told = a_job(JobPhase.SAVING, 4, 5, told_s=NOW_S - 1)
    assert do(groups(S, T, T), [S, T, T], told) == []
    ended = a_job(JobPhase.STOPPED, 4, 5)
    assert do(groups(S, T, T), [S, T, T], ended) == [(Action.START_JOB, (2, 3, 4, 5))]


def test_a_lost_chip_ends_the_job_at_once_and_it_begins_without_it() -> None:
    running = a_job(JobPhase.RUNNING, 2, 3, 4, 5)
    assert do(groups(S, T, T, lost=(3,)), [S, T, T], running) == [(Action.KILL_JOB, ())]
    killed = a_job(JobPhase.CRASHED, 2, 3, 4, 5, starts=1)
    begin = [(Action.START_JOB, (2, 4, 5))]
    assert do(groups(S, T, T, lost=(3,)), [S, T, T], killed) == begin


def test_a_group_without_a_working_chip_comes_back() -> None:
    killed = a_job(JobPhase.CRASHED, 2, 3, 4, 5, starts=1)
    both = [(Action.START_JOB, (2, 3)), (Action.RESUME, 2)]
    assert do(groups(S, T, T, lost=(4, 5)), [S, T, T], killed) == both


def test_a_job_that_is_left_over_from_an_engine_before_is_ended() -> None:
    left = a_job(JobPhase.RUNNING, 2, 3)
    assert do(groups(S, S), [S, T], left) == [(Action.STOP_JOB, ())]


def test_a_draining_group_that_is_wanted_is_called_off() -> None:
    assert do(groups(S, D), [S, S], NO_JOB) == [(Action.CANCEL, 1)]


def test_the_last_groups_leave_first_and_those_that_are_out_stay_out() -> None:
    assert wishes(groups(S, S, S), 1) == (S, T, T)
    assert wishes(groups(S, S, S), 3) == (S, S, S)
    assert wishes(groups(S, T, S), 2) == (S, T, S)
    assert wishes(groups(S, T, T), 2) == (S, S, T)
    assert wishes(groups(S, T, R), 1) == (S, T, T)


@given(
    phases=st.lists(st.sampled_from([S, D, T, R]), min_size=2, max_size=6),
    serving=st.integers(0, 6),
)
def test_as_many_serve_as_are_wanted(phases: list[Phase], serving: int) -> None:
    wanted = wishes(groups(*phases), serving)

    assert wanted.count(S) == min(serving, len(phases))


def test_an_ended_lease_is_nobody_s() -> None:
    ended = msgspec.structs.replace(a_lease(1, (0, 1)), phase="serving")
    going = a_lease(2, (2, 3))

    first, second, third = groups_of(7, 2, [ended, going])
    assert (first.lease, second.lease, third.lease) == (None, going, None)
    assert third.chips == (4, 5)  # the seventh chip is in no group


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SAVING])
@given(
    phases=st.lists(st.sampled_from([S, D, T, R]), min_size=2, max_size=5),
    wanted=st.lists(st.sampled_from([S, T]), min_size=5, max_size=5),
)
def test_no_group_goes_back_with_a_job_on_it(
    phase: JobPhase, phases: list[Phase], wanted: list[Phase]
) -> None:
    seen = groups(*phases)
    job = a_job(phase, *(chip for group in seen if group.phase is T for chip in group.chips))

    steps = do(seen, wanted[: len(phases)], job)
    assert Action.START_JOB not in [action for action, _ in steps]
    if job.chips:
        assert Action.RESUME not in [action for action, _ in steps]
