import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from emulator.errors import ConfigError
from serving.policy.day_night.handover import (
    TRANSITIONS,
    Action,
    Event,
    Failures,
    GroupObserved,
    HandoverError,
    HandoverLimits,
    JobObserved,
    JobPhase,
    Phase,
    backoff_s,
    next_action,
    reachable,
    transition,
)

LIMITS = HandoverLimits(
    stop_s=10.0, silent_s=20.0, backoff_s=5.0, backoff_max_s=40.0, attempts_max=3
)
NOW_S = 1_000.0
TRAIN, SERVE = Phase.TRAINING, Phase.SERVING


def group(phase: Phase, **more: object) -> GroupObserved:
    return replace(GroupObserved(phase=phase), **more)  # type: ignore[arg-type]


def job(phase: JobPhase, **more: object) -> JobObserved:
    return replace(JobObserved(phase=phase, heard_s=NOW_S), **more)  # type: ignore[arg-type]


def act(desired: Phase, seen: GroupObserved, its_job: JobObserved) -> Action | None:
    return next_action(desired, seen, its_job, now_s=NOW_S, limits=LIMITS)


def test_a_quiet_night_goes_once_around() -> None:
    phases = [Phase.SERVING]
    for event in (
        Event.DRAIN,
        Event.VACATED,
        Event.JOB_STARTED,
        Event.JOB_ENDED,
        Event.RESUME,
        Event.RESTORED,
    ):
        phases.append(transition(phases[-1], event))

    assert phases == ["serving", "draining", *["training"] * 3, "restoring", "serving"]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_phase_has_an_answer(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert isinstance(transition(phase, event), Phase)
        return
    with pytest.raises(HandoverError) as refused:
        transition(phase, event)
    assert "\n" not in str(refused.value)
    assert phase in str(refused.value)
    assert event in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_lost_chip_and_a_new_engine_are_met_in_every_phase() -> None:
    for event in (Event.CHIP_LOST, Event.ENGINE_RESTARTED):
        assert {phase for phase in Phase if (phase, event) in TRANSITIONS} == set(Phase)


def test_only_vacated_chips_are_lent_and_only_resumed_ones_come_back() -> None:
    # A half-restored group is not lent anew: its processes ended, its lease never did.
    lent = {pair for pair, after in TRANSITIONS.items() if after is TRAIN and pair[0] is not TRAIN}
    back = {event for (phase, event), after in TRANSITIONS.items() if phase is TRAIN != after}

    assert lent == {
        (Phase.DRAINING, Event.VACATED),
        (Phase.RESTORING, Event.CHIP_LOST),
        (Phase.RESTORING, Event.RESTORE_FAILED),
    }
    assert back == {Event.RESUME, Event.ENGINE_RESTARTED}


def test_maintenance_is_left_and_entered_without_a_job() -> None:
    phases = [Phase.SERVING]
    for event in (Event.DRAIN, Event.EMPTIED, Event.RESUME, Event.SENT_BACK, Event.RESUME):
        phases.append(transition(phases[-1], event))

    assert phases[1:] == ["draining", *["maintenance", "restoring"] * 2]
    for event in (Event.JOB_STARTED, Event.JOB_ENDED, Event.VACATED):
        with pytest.raises(HandoverError):
            transition(Phase.MAINTENANCE, event)
    for desired in (TRAIN, SERVE):
        assert act(desired, group(Phase.MAINTENANCE), job(JobPhase.ABSENT)) is None


@pytest.mark.parametrize(
    ("desired", "seen", "its_job", "action"),
    [
        (TRAIN, group(SERVE), job(JobPhase.ABSENT), Action.DRAIN),
        (TRAIN, group(SERVE), job(JobPhase.RUNNING), Action.STOP_JOB),
        (TRAIN, group(Phase.DRAINING), job(JobPhase.ABSENT), None),
        (TRAIN, group(TRAIN), job(JobPhase.ABSENT), Action.START_JOB),
        (TRAIN, group(TRAIN), job(JobPhase.STOPPED), Action.START_JOB),
        (TRAIN, group(TRAIN), job(JobPhase.STARTING), None),
        (TRAIN, group(TRAIN), job(JobPhase.RUNNING), None),
        (TRAIN, group(TRAIN), job(JobPhase.STARTING, starts=Failures(count=3)), None),
        (TRAIN, group(TRAIN), job(JobPhase.FINISHED), Action.RESUME),
        (TRAIN, group(TRAIN), job(JobPhase.FAILED), Action.RESUME),
        (TRAIN, group(SERVE), job(JobPhase.FINISHED), None),
        (TRAIN, group(Phase.RESTORING), job(JobPhase.STOPPED), None),
        (TRAIN, group(SERVE, can_train=False), job(JobPhase.ABSENT), None),
        (TRAIN, group(Phase.DRAINING, can_train=False), job(JobPhase.ABSENT), Action.CANCEL),
        (TRAIN, group(TRAIN, can_train=False), job(JobPhase.CRASHED), Action.RESUME),
        (SERVE, group(SERVE), job(JobPhase.STOPPED), None),
        (SERVE, group(SERVE), job(JobPhase.RUNNING), Action.STOP_JOB),  # two hands: end it
        (SERVE, group(Phase.DRAINING), job(JobPhase.ABSENT), Action.CANCEL),
        (SERVE, group(TRAIN), job(JobPhase.ABSENT), Action.RESUME),
        (SERVE, group(TRAIN), job(JobPhase.RUNNING), Action.STOP_JOB),
        (SERVE, group(TRAIN), job(JobPhase.SAVING), Action.STOP_JOB),  # nobody remembers asking
        (SERVE, group(TRAIN), job(JobPhase.SAVING, stop_asked_s=NOW_S - 9), None),
        (SERVE, group(TRAIN), job(JobPhase.SAVING, stop_asked_s=NOW_S - 10), Action.KILL_JOB),
        (SERVE, group(TRAIN), job(JobPhase.STOPPED), Action.RESUME),
        (SERVE, group(TRAIN), job(JobPhase.CRASHED), Action.RESUME),
        (SERVE, group(TRAIN, can_serve=False), job(JobPhase.STOPPED), None),
        (SERVE, group(Phase.RESTORING), job(JobPhase.STOPPED), None),
        # Silence and a stop that was called off.
        (TRAIN, group(TRAIN), job(JobPhase.RUNNING, heard_s=NOW_S - 19), None),
        (TRAIN, group(TRAIN), job(JobPhase.RUNNING, heard_s=NOW_S - 20), Action.KILL_JOB),
        (TRAIN, group(TRAIN), job(JobPhase.SAVING, stop_asked_s=NOW_S - 1), None),
        (TRAIN, group(TRAIN), job(JobPhase.SAVING, stop_asked_s=NOW_S - 10), Action.KILL_JOB),
        # The wait after failures: 5 s, 10 s, then no more.
        (TRAIN, group(TRAIN), job(JobPhase.CRASHED, starts=Failures(count=1, last_s=996)), None),
        (
            TRAIN,
            group(TRAIN),
            job(JobPhase.CRASHED, starts=Failures(count=2, last_s=990)),
            Action.START_JOB,
        ),
        (
            TRAIN,
            group(TRAIN),
            job(JobPhase.CRASHED, starts=Failures(count=3, last_s=0)),
            Action.RESUME,
        ),
        (TRAIN, group(SERVE, handovers=Failures(count=1, last_s=996)), job(JobPhase.ABSENT), None),
        (TRAIN, group(SERVE, handovers=Failures(count=3, last_s=0)), job(JobPhase.ABSENT), None),
        (SERVE, group(TRAIN, handovers=Failures(count=2, last_s=991)), job(JobPhase.STOPPED), None),
    ],
)
def test_the_next_action_is_what_a_careful_operator_would_do(
    desired: Phase, seen: GroupObserved, its_job: JobObserved, action: Action | None
) -> None:
    assert act(desired, seen, its_job) is action


def before_engine(its_job: JobObserved) -> Action | None:
    """What is done before an engine starts: it takes all chips, so no job may hold any."""
    return act(SERVE, group(Phase.RESTORING), its_job)


def test_an_engine_waits_for_every_job_that_lives() -> None:
    for phase in JobPhase:
        first = before_engine(job(phase))
        assert (first is None) == (not phase.alive)
    for asked_s, action in ((NOW_S - 9, None), (NOW_S - 10, Action.KILL_JOB)):
        told = job(JobPhase.SAVING, stop_asked_s=asked_s)
        assert before_engine(told) is action


def test_waits_double_up_to_their_limit() -> None:
    assert [backoff_s(count, LIMITS) for count in (1, 2, 3, 4, 5, 10_000)] == [
        5,
        10,
        20,
        40,
        40,
        40,
    ]


def test_a_first_attempt_waits_for_nothing() -> None:
    assert Failures().may_try(1.0, LIMITS)
    assert not Failures(count=1).may_try(4.9, LIMITS)
    assert Failures(count=1).may_try(5.0, LIMITS)
    assert not Failures(count=3).may_try(1e9, LIMITS)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"stop_s": -1.0}, "stop_s"),
        ({"silent_s": float("nan")}, "silent_s"),
        ({"backoff_s": 9.0, "backoff_max_s": 8.0}, "backoff_max_s"),
        ({"attempts_max": 0}, "attempts_max"),
    ],
)
def test_limits_that_cannot_be_are_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}="):
        HandoverLimits(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.RESTORING])
def test_no_group_is_wanted_half_way(phase: Phase) -> None:
    with pytest.raises(ConfigError, match=r"^desired="):
        act(phase, group(SERVE), job(JobPhase.ABSENT))


# A small model of everything around the controller, in which anything may happen at any moment.


@dataclass(frozen=True, slots=True)
class World:
    """One group, its job and what the controller remembers; `phase` None: no engine runs."""

    phase: Phase | None = Phase.SERVING
    job: JobPhase = JobPhase.ABSENT
    hung: bool = False
    asked: bool = False
    can_train: bool = True
    can_serve: bool = True
    handovers: int = 0
    starts: int = 0
    desired: Phase = Phase.SERVING
    faults_left: int = 7

    def seen(self, late: bool) -> tuple[GroupObserved, JobObserved]:
        """Show it with every wait still on, or with every wait over."""
        long_ago = 0.0 if late else NOW_S
        assert self.phase is not None
        return (
            GroupObserved(
                phase=self.phase,
                handovers=Failures(count=self.handovers, last_s=long_ago),
                can_train=self.can_train,
                can_serve=self.can_serve,
            ),
            self.job_seen(late),
        )

    def job_seen(self, late: bool) -> JobObserved:
        long_ago = 0.0 if late else NOW_S
        return JobObserved(
            phase=self.job,
            heard_s=long_ago if self.hung else NOW_S,
            stop_asked_s=long_ago if self.asked else None,
            starts=Failures(count=self.starts, last_s=long_ago),
        )

    def action(self, late: bool) -> Action | None:
        if self.phase is None:
            return before_engine(self.job_seen(late))
        seen, its_job = self.seen(late)
        return next_action(self.desired, seen, its_job, now_s=NOW_S, limits=LIMITS)

    def after(self, event: Event) -> "World":
        assert self.phase is not None
        return replace(self, phase=transition(self.phase, event))

    def job_gone(self, phase: JobPhase, *, failed: bool = False) -> "World":
        starts = min(self.starts + failed, LIMITS.attempts_max)
        return replace(self, job=phase, hung=False, asked=False, starts=starts)

    def hands(self) -> int:
        """How many processes hold the chips."""
        return self.job.alive + (self.phase in (SERVE, Phase.DRAINING, Phase.RESTORING))


def done(world: World, action: Action) -> World:
    """The world after an action that was carried out."""
    match action:
        case Action.DRAIN:
            return world.after(Event.DRAIN)
        case Action.CANCEL:
            return world.after(Event.CANCELLED)
        case Action.RESUME:
            return world.after(Event.RESUME)
        case Action.START_JOB:
            assert (world.phase, world.job.alive) == (TRAIN, False)
            return replace(world.after(Event.JOB_STARTED), job=JobPhase.STARTING)
        case Action.STOP_JOB:
            saves = world.job is JobPhase.RUNNING and not world.hung
            return replace(world, asked=True, job=JobPhase.SAVING if saves else world.job)
        case Action.KILL_JOB:
            return world.job_gone(JobPhase.CRASHED, failed=True)


def progress(world: World) -> World:
    """The world after engine and job went on by themselves by one step, without any fault."""
    if world.phase is Phase.DRAINING:
        world = replace(world.after(Event.VACATED), handovers=0)
    elif world.phase is Phase.RESTORING:
        world = replace(world.after(Event.RESTORED), handovers=0)
    if world.job is JobPhase.STARTING and not world.hung:
        world = replace(world, job=JobPhase.SAVING if world.asked else JobPhase.RUNNING, starts=0)
    elif world.job is JobPhase.SAVING and not world.hung:
        world = world.job_gone(JobPhase.STOPPED)
    return world


def faults(world: World) -> Iterator[World]:
    """Every world after one more fault, crash or change of mind."""
    failed = replace(world, faults_left=world.faults_left - 1)
    more = replace(failed, handovers=min(world.handovers + 1, LIMITS.attempts_max))
    yield replace(failed, desired=SERVE if world.desired is TRAIN else TRAIN)
    yield replace(failed, asked=False)  # the controller crashed and forgot
    if world.job.alive:
        yield replace(failed, hung=True)
        yield failed.job_gone(JobPhase.CRASHED, failed=True)
        yield failed.job_gone(JobPhase.FAILED)
        yield failed.job_gone(JobPhase.FINISHED)
    if world.phase is None:
        return
    yield replace(failed, phase=None)  # the engine died; its leases die with it
    if world.phase is SERVE:
        yield more.after(Event.REFUSED)
    if world.phase is Phase.DRAINING:
        yield more.after(Event.DRAIN_FAILED)
        if not world.job.alive:
            yield failed.after(Event.EMPTIED)  # it was an operator who drained it
    if world.phase is Phase.MAINTENANCE:
        yield failed.after(Event.RESUME)  # the operator is done
    if world.phase is Phase.RESTORING:
        yield more.after(Event.RESTORE_FAILED)
    lost = failed.job_gone(JobPhase.CRASHED, failed=True) if world.job.alive else failed
    for can_serve in {world.can_serve, False}:
        yield replace(lost.after(Event.CHIP_LOST), can_train=False, can_serve=can_serve)


def steps(world: World) -> Iterator[World]:
    """Every next world."""
    yield progress(world)
    for late in (False, True):
        action = world.action(late)
        if action is not None:
            yield done(world, action)
        elif world.phase is None and not world.job.alive:
            yield replace(world, phase=Phase.SERVING, handovers=0)
    if world.faults_left:
        yield from faults(world)


@pytest.fixture(scope="module")
def worlds() -> set[World]:
    """Every world that seven faults, crashes or changes of mind can lead to."""
    seen = {World()}
    front = list(seen)
    while front:
        front = [after for world in front for after in steps(world) if after not in seen]
        front = list(set(front))
        seen.update(front)
    return seen


def test_no_chip_is_ever_in_two_hands(worlds: set[World]) -> None:
    assert len(worlds) > 1_000
    # Of chips in maintenance an operator decides, and nothing else moves them.
    assert {world.phase for world in worlds} == {None, *Phase}
    assert {world.job for world in worlds} == set(JobPhase)
    assert [world for world in worlds if world.hands() > 1] == []


def calmed(world: World) -> World:
    """The world when nothing more goes wrong and every wait passes, until it rests."""
    for _ in range(20):
        before = world
        action = world.action(late=True)
        if action is not None:
            world = done(world, action)
        elif world.phase is None and not world.job.alive:
            world = replace(world, phase=Phase.SERVING, handovers=0)
        world = progress(world)
        if world == before:
            return world
    raise AssertionError(f"never rests: {world}")


def test_every_world_comes_to_rest_where_it_is_wanted(worlds: set[World]) -> None:
    for start in worlds:
        rest = calmed(start)
        if rest.phase is Phase.MAINTENANCE:  # until the operator who drained it takes it back
            assert not rest.job.alive
            continue
        seen, its_job = rest.seen(late=True)
        wanted = reachable(rest.desired, seen, its_job, LIMITS)
        given_up = rest.handovers >= LIMITS.attempts_max
        if wanted is TRAIN:
            trains = rest.phase is TRAIN and rest.job is JobPhase.RUNNING
            assert trains or (rest.phase is SERVE and given_up), (start, rest)
        elif rest.phase is not SERVE:
            assert (rest.phase, rest.job.alive) == (TRAIN, False), (start, rest)
            assert not rest.can_serve, (start, rest)  # a way back is never given up


def test_the_wanted_phase_is_given_up_only_for_a_reason(worlds: set[World]) -> None:
    for world in worlds:
        if world.phase is None or world.desired is SERVE:
            continue
        seen, its_job = world.seen(late=True)
        reason = (
            not world.can_train
            or world.job in (JobPhase.FAILED, JobPhase.FINISHED)
            or (world.starts >= LIMITS.attempts_max and not world.job.alive)
        )
        assert (reachable(TRAIN, seen, its_job, LIMITS) is SERVE) == reason
