"""The whole hand-over as one machine: what is due, by hand, and what events change."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.day_night.handover import (
    JOB_TRANSITIONS,
    TRANSITIONS,
    Action,
    Failures,
    HandoverError,
    HandoverEvent,
    HandoverLimits,
    HandoverPhase,
    JobEvent,
    JobPhase,
)
from serving.policy.day_night.handover_machine import (
    Desired,
    GroupHappened,
    HandoverGroup,
    HandoverJob,
    HandoverState,
    Happened,
    JobHappened,
    due,
    next_limit_s,
    step,
    take,
    wishes,
)

LIMITS = HandoverLimits(
    stop_s=10.0, silent_s=20.0, backoff_s=5.0, backoff_max_s=40.0, attempts_max=3
)
NOW_S = 1_000.0
S, D, T = HandoverPhase.SERVING, HandoverPhase.DRAINING, HandoverPhase.TRAINING
R, M = HandoverPhase.RESTORING, HandoverPhase.MAINTENANCE


def machine(
    *phases: HandoverPhase,
    desired: list[HandoverPhase],
    job: HandoverJob | None = None,
    lost: tuple[int, ...] = (),
    tries: dict[int, Failures] | None = None,
) -> HandoverState:
    """Groups of two chips in these phases."""
    return HandoverState(
        groups=tuple(
            HandoverGroup(
                number=number,
                chips=(2 * number, 2 * number + 1),
                phase=phase,
                desired=wish,
                lost_chips=tuple(chip for chip in lost if chip // 2 == number),
                in_maintenance=phase is M,
                failures=(tries or {}).get(number, Failures()),
            )
            for number, (phase, wish) in enumerate(zip(phases, desired, strict=True))
        ),
        job=job or HandoverJob(),
    )


def a_job(phase: JobPhase, *chips: int, **more: Any) -> HandoverJob:
    if phase is JobPhase.SAVING:
        more = {"stop_asked_s": NOW_S - 1, **more}
    return HandoverJob(phase=phase, chips=chips, **{"heard_s": NOW_S, **more})


def do(state: HandoverState) -> list[tuple[Action, object]]:
    """Each action that is due with its group's number, or the job's chips."""
    made = due(state, now_s=NOW_S, limits=LIMITS)
    return [(each.action, each.chips if each.group is None else each.group) for each in made]


# One group, case by case.


def failed(count: int, last_s: float) -> Failures:
    return Failures(count=count, last_s=last_s)


@pytest.mark.parametrize(
    ("desired", "phase", "its_job", "action"),
    [
        (T, S, a_job(JobPhase.ABSENT), Action.DRAIN),
        (T, S, a_job(JobPhase.RUNNING, 0), Action.STOP_JOB),
        (T, D, a_job(JobPhase.ABSENT), None),
        (T, T, a_job(JobPhase.ABSENT), Action.START_JOB),
        (T, T, a_job(JobPhase.STOPPED, 0), Action.START_JOB),
        (T, T, a_job(JobPhase.STARTING, 0), None),
        (T, T, a_job(JobPhase.RUNNING, 0), None),
        (T, T, a_job(JobPhase.STARTING, 0, starts=failed(3, 0)), None),
        (T, T, a_job(JobPhase.FINISHED, 0), Action.RESUME),
        (T, T, a_job(JobPhase.FAILED, 0), Action.RESUME),
        (T, S, a_job(JobPhase.FINISHED, 0), None),
        (T, R, a_job(JobPhase.STOPPED, 0), None),
        (T, M, a_job(JobPhase.STOPPED, 0), None),
        (S, S, a_job(JobPhase.STOPPED, 0), None),
        (S, S, a_job(JobPhase.RUNNING, 0), Action.STOP_JOB),  # in two roles: end it
        (S, D, a_job(JobPhase.ABSENT), Action.CANCEL),
        (S, T, a_job(JobPhase.ABSENT), Action.RESUME),
        (S, T, a_job(JobPhase.RUNNING, 0), Action.STOP_JOB),
        (S, T, a_job(JobPhase.SAVING, 0, stop_asked_s=NOW_S - 9), None),
        (S, T, a_job(JobPhase.SAVING, 0, stop_asked_s=NOW_S - 10), Action.KILL_JOB),
        (S, T, a_job(JobPhase.STOPPED, 0), Action.RESUME),
        (S, T, a_job(JobPhase.CRASHED, 0), Action.RESUME),
        (S, R, a_job(JobPhase.STOPPED, 0), None),
        (S, M, a_job(JobPhase.STOPPED, 0), None),
        # Silence, and a stop that was called off.
        (T, T, a_job(JobPhase.RUNNING, 0, heard_s=NOW_S - 19), None),
        (T, T, a_job(JobPhase.RUNNING, 0, heard_s=NOW_S - 20), Action.KILL_JOB),
        (T, T, a_job(JobPhase.SAVING, 0, stop_asked_s=NOW_S - 1), None),
        (T, T, a_job(JobPhase.SAVING, 0, stop_asked_s=NOW_S - 10), Action.KILL_JOB),
        # The wait after failures: 5 s, 10 s, then no more.
        (T, T, a_job(JobPhase.CRASHED, 0, starts=failed(1, 996)), None),
        (T, T, a_job(JobPhase.CRASHED, 0, starts=failed(2, 990)), Action.START_JOB),
        (T, T, a_job(JobPhase.CRASHED, 0, starts=failed(3, 0)), Action.RESUME),
    ],
)
def test_the_next_action_is_what_a_careful_operator_would_do(
    desired: HandoverPhase, phase: HandoverPhase, its_job: HandoverJob, action: Action | None
) -> None:
    assert [each for each, _ in do(machine(phase, desired=[desired], job=its_job))] == (
        [] if action is None else [action]
    )


@pytest.mark.parametrize(
    ("desired", "phase", "failures", "action"),
    [
        (T, S, failed(1, 996), None),
        (T, S, failed(1, 995), Action.DRAIN),
        (T, S, failed(3, 0), None),
        (S, T, failed(2, 991), None),
        (S, T, failed(9, 960), Action.RESUME),  # a way back is never given up
    ],
)
def test_a_hand_over_that_failed_waits(
    desired: HandoverPhase, phase: HandoverPhase, failures: Failures, action: Action | None
) -> None:
    state = machine(phase, desired=[desired], tries={0: failures})
    assert [each for each, _ in do(state)] == ([] if action is None else [action])


# Several groups and the job that they share.


def test_by_day_nothing_is_due() -> None:
    assert do(machine(S, S, desired=[S, S])) == []


def test_the_job_waits_for_groups_that_are_on_their_way() -> None:
    drains = [(Action.DRAIN, 1), (Action.DRAIN, 2)]
    assert do(machine(S, S, S, desired=[S, T, T])) == drains
    assert do(machine(S, D, T, desired=[S, T, T])) == []
    start = [(Action.START_JOB, (2, 3, 4, 5))]
    assert do(machine(S, T, T, desired=[S, T, T])) == start


def test_the_job_does_not_wait_for_a_group_that_is_refused() -> None:
    state = machine(S, S, T, desired=[S, T, T], tries={1: failed(1, NOW_S)})
    assert do(state) == [(Action.START_JOB, (4, 5))]


def test_a_job_waits_for_as_many_chips_as_it_needs() -> None:
    state = replace(machine(S, S, T, desired=[S, S, T]), job_chips_min=4)
    assert do(state) == []
    both = replace(machine(S, T, T, desired=[S, T, T]), job_chips_min=4)
    assert do(both) == [(Action.START_JOB, (2, 3, 4, 5))]


def test_in_the_morning_the_job_ends_before_its_chips_go() -> None:
    for job, steps in (
        (a_job(JobPhase.RUNNING, 2, 3, 4, 5), [(Action.STOP_JOB, ())]),
        (a_job(JobPhase.SAVING, 2, 3, 4, 5), []),
        (a_job(JobPhase.SAVING, 2, 3, 4, 5, stop_asked_s=990.0), [(Action.KILL_JOB, ())]),
        (a_job(JobPhase.STOPPED, 2, 3, 4, 5), [(Action.RESUME, 1), (Action.RESUME, 2)]),
    ):
        assert do(machine(S, T, T, desired=[S, S, S], job=job)) == steps


def test_one_group_goes_and_the_job_goes_on_with_the_others() -> None:
    running = a_job(JobPhase.RUNNING, 2, 3, 4, 5)
    assert do(machine(S, T, T, desired=[S, S, T], job=running)) == [(Action.STOP_JOB, ())]
    ended = a_job(JobPhase.STOPPED, 2, 3, 4, 5)
    both = [(Action.START_JOB, (4, 5)), (Action.RESUME, 1)]
    assert do(machine(S, T, T, desired=[S, S, T], job=ended)) == both
    # It runs on the others before the group has begun to come back.
    fewer = a_job(JobPhase.RUNNING, 4, 5)
    assert do(machine(S, T, T, desired=[S, S, T], job=fewer)) == [(Action.RESUME, 1)]


def test_another_group_comes_and_the_job_begins_anew_with_it() -> None:
    for job, steps in (
        (a_job(JobPhase.RUNNING, 4, 5), [(Action.STOP_JOB, ())]),
        (a_job(JobPhase.SAVING, 4, 5), []),
        (a_job(JobPhase.STOPPED, 4, 5), [(Action.START_JOB, (2, 3, 4, 5))]),
    ):
        assert do(machine(S, T, T, desired=[S, T, T], job=job)) == steps


def test_a_lost_chip_ends_the_job_at_once_and_it_begins_without_it() -> None:
    running = a_job(JobPhase.RUNNING, 2, 3, 4, 5)
    state = machine(S, T, T, desired=[S, T, T], job=running, lost=(3,))
    assert do(state) == [(Action.KILL_JOB, ())]
    killed = a_job(JobPhase.CRASHED, 2, 3, 4, 5, starts=failed(1, 0))
    state = machine(S, T, T, desired=[S, T, T], job=killed, lost=(3,))
    assert do(state) == [(Action.START_JOB, (2, 4, 5))]


def test_a_group_without_a_working_chip_comes_back() -> None:
    killed = a_job(JobPhase.CRASHED, 2, 3, 4, 5, starts=failed(1, 0))
    state = machine(S, T, T, desired=[S, T, T], job=killed, lost=(4, 5))
    assert do(state) == [(Action.START_JOB, (2, 3)), (Action.RESUME, 2)]


def test_a_job_that_is_left_over_from_an_engine_before_is_ended() -> None:
    left = a_job(JobPhase.RUNNING, 2, 3)
    assert do(machine(S, S, desired=[S, T], job=left)) == [(Action.STOP_JOB, ())]


def test_the_last_groups_leave_first_and_those_that_are_out_stay_out() -> None:
    def wanted(*phases: HandoverPhase, serving: int) -> tuple[HandoverPhase, ...]:
        return wishes(machine(*phases, desired=[S] * len(phases)), serving)

    assert wanted(S, S, S, serving=1) == (S, T, T)
    assert wanted(S, S, S, serving=3) == (S, S, S)
    assert wanted(S, T, S, serving=2) == (S, T, S)
    assert wanted(S, T, T, serving=2) == (S, S, T)
    assert wanted(S, T, R, serving=1) == (S, T, T)
    assert wanted(S, T, D, serving=2) == (S, T, S)  # it costs nothing to stay
    assert wanted(S, M, S, serving=1) == (S, S, T)


@given(
    phases=st.lists(st.sampled_from([S, D, T, R]), min_size=2, max_size=6),
    serving=st.integers(0, 6),
)
def test_as_many_serve_as_are_wanted(phases: list[HandoverPhase], serving: int) -> None:
    wanted = wishes(machine(*phases, desired=[S] * len(phases)), serving)
    assert wanted.count(S) == min(serving, len(phases))


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SAVING])
@given(
    phases=st.lists(st.sampled_from([S, D, T, R]), min_size=2, max_size=5),
    wanted=st.lists(st.sampled_from([S, T]), min_size=5, max_size=5),
)
def test_no_group_goes_back_with_a_job_on_it(
    phase: JobPhase, phases: list[HandoverPhase], wanted: list[HandoverPhase]
) -> None:
    chips = [chip for n, each in enumerate(phases) if each is T for chip in (2 * n, 2 * n + 1)]
    state = machine(*phases, desired=wanted[: len(phases)], job=a_job(phase, *chips))

    actions = [action for action, _ in do(state)]
    assert Action.START_JOB not in actions
    if chips:
        assert Action.RESUME not in actions


# What events change.


def happened(state: HandoverState, *events: Happened) -> HandoverState:
    for event in events:
        state = take(state, event, now_s=NOW_S)
    return state


def test_a_wish_is_for_serving_or_training() -> None:
    for phase in (D, R, M):
        with pytest.raises(ConfigError, match=r"^desired="):
            Desired(phases=(phase,))


def test_a_failure_counts_until_the_group_is_where_it_is_wanted_or_wanted_elsewhere() -> None:
    def on(event: HandoverEvent) -> GroupHappened:
        return GroupHappened(group=0, event=event, words="no room")

    state = machine(S, desired=[T])
    refused = happened(state, on(HandoverEvent.REFUSED), on(HandoverEvent.REFUSED))
    assert refused.groups[0].failures == Failures(count=2, last_s=NOW_S, words="no room")
    assert next_limit_s(refused, now_s=NOW_S, limits=LIMITS) == NOW_S + 10
    out = happened(refused, on(HandoverEvent.DRAIN))
    assert out.groups[0].failures.count == 2
    assert happened(out, on(HandoverEvent.DRAIN_FAILED)).groups[0].failures.count == 3
    assert happened(out, on(HandoverEvent.VACATED)).groups[0].failures == Failures()
    assert happened(refused, Desired(phases=(S,))).groups[0].failures == Failures()


def test_a_step_of_the_job_or_asking_anew_forgives_its_failures() -> None:
    def on(event: JobEvent) -> JobHappened:
        return JobHappened(event=event, chips=(0, 1), words="it died")

    state = happened(machine(T, desired=[T]), on(JobEvent.STARTED), on(JobEvent.CRASHED))
    assert state.job.starts == Failures(count=1, last_s=NOW_S, words="it died")
    assert happened(state, on(JobEvent.FORGIVEN)).job.starts == Failures()
    runs = happened(state, on(JobEvent.STARTED), on(JobEvent.RAN))
    assert runs.job.starts.count == 1
    assert happened(runs, on(JobEvent.STEPPED)).job.starts == Failures()


def test_time_alone_makes_a_killing_due() -> None:
    saving = machine(T, desired=[S], job=a_job(JobPhase.SAVING, 0, 1, stop_asked_s=NOW_S))
    at_s = next_limit_s(saving, now_s=NOW_S, limits=LIMITS)
    assert at_s == NOW_S + LIMITS.stop_s
    (kill,) = due(saving, now_s=at_s, limits=LIMITS)
    assert kill.action is Action.KILL_JOB
    quiet = machine(S, desired=[S])
    assert next_limit_s(quiet, now_s=NOW_S, limits=LIMITS) == float("inf")


@pytest.mark.parametrize("phase", HandoverPhase)
@pytest.mark.parametrize("event", HandoverEvent)
def test_a_group_takes_what_its_table_holds(phase: HandoverPhase, event: HandoverEvent) -> None:
    state = machine(phase, desired=[T])
    asked = GroupHappened(group=0, event=event, chips=(1,))
    after = TRANSITIONS.get((phase, event))
    if after is None:
        with pytest.raises(HandoverError):
            step(state, asked, now_s=NOW_S, limits=LIMITS)
        return
    group = step(state, asked, now_s=NOW_S, limits=LIMITS)[0].groups[0]
    assert group.phase is after
    assert group.in_maintenance == (after is M or (phase is M and after is not S))
    assert group.lost_chips == ((1,) if event is HandoverEvent.CHIP_LOST and after is not S else ())


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("event", JobEvent)
def test_a_job_takes_what_its_table_holds(phase: JobPhase, event: JobEvent) -> None:
    state = machine(T, desired=[T], job=a_job(phase, 0, 1))
    after = JOB_TRANSITIONS.get((phase, event))
    if after is None:
        with pytest.raises(HandoverError):
            take(state, JobHappened(event=event), now_s=NOW_S)
        return
    job = take(state, JobHappened(event=event, chips=(1,)), now_s=NOW_S).job
    assert job.phase is after
    assert (job.stop_asked_s is not None) == (after is JobPhase.SAVING)
    assert job.chips == ((1,) if event is JobEvent.STARTED else (0, 1))
