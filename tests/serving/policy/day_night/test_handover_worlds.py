"""All that can happen to a group and its job, by a small model of everything around the machine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from serving.policy.day_night.handover import (
    TRANSITIONS,
    Action,
    Failures,
    HandoverEvent,
    HandoverPhase,
    JobEvent,
    JobPhase,
)
from serving.policy.day_night.handover_machine import (
    GroupHappened,
    HandoverGroup,
    HandoverJob,
    HandoverState,
    Happened,
    JobHappened,
    due,
    reachable,
    take,
)
from tests.serving.policy.day_night.test_handover_machine import LIMITS, NOW_S, D, M, R, S, T


@dataclass(frozen=True, slots=True)
class World:
    """One group, its job, and what is remembered; `phase` None: no engine runs."""

    phase: HandoverPhase | None = S
    job: JobPhase = JobPhase.ABSENT
    hung: bool = False
    can_train: bool = True
    handovers: int = 0
    starts: int = 0
    desired: HandoverPhase = S
    faults_left: int = 7

    def state(self, late: bool) -> HandoverState:
        """The machine's, with every wait still on, or with every wait over."""
        long_ago = 0.0 if late else NOW_S
        group = HandoverGroup(
            number=0,
            chips=(0,),
            phase=self.phase or R,  # before an engine starts: it takes all chips
            desired=self.desired if self.phase else S,
            lost_chips=() if self.can_train else (0,),
            in_maintenance=self.phase is M,
            failures=Failures(count=self.handovers, last_s=long_ago),
        )
        job = HandoverJob(
            phase=self.job,
            chips=(0,),
            heard_s=long_ago if self.hung else NOW_S,
            stop_asked_s=long_ago if self.job is JobPhase.SAVING else None,
            starts=Failures(count=self.starts, last_s=long_ago),
        )
        return HandoverState(groups=(group,), job=job)

    def action(self, late: bool) -> Action | None:
        steps = due(self.state(late), now_s=NOW_S, limits=LIMITS)
        assert len(steps) <= 1
        return steps[0].action if steps else None

    def on(self, *events: HandoverEvent | JobEvent) -> "World":
        """After these events went through the machine."""
        state = self.state(late=False)
        for event in events:
            asked: Happened
            if isinstance(event, HandoverEvent):
                lost = (0,) if event is HandoverEvent.CHIP_LOST else ()
                asked = GroupHappened(group=0, event=event, chips=lost)
            else:
                asked = JobHappened(event=event, chips=(0,))
            state = take(state, asked, now_s=NOW_S)
        group, job = state.groups[0], state.job
        return replace(
            self,
            phase=group.phase if self.phase else None,
            job=job.phase,
            hung=self.hung and job.phase.alive,
            can_train=not group.lost_chips,
            handovers=min(group.failures.count, LIMITS.attempts_max),
            starts=min(job.starts.count, LIMITS.attempts_max),
        )

    def roles(self) -> int:
        """How many processes hold the chips."""
        return self.job.alive + (self.phase in (S, D, R))


EVENT_OF = {
    Action.DRAIN: HandoverEvent.DRAIN,
    Action.CANCEL: HandoverEvent.CANCELLED,
    Action.RESUME: HandoverEvent.RESUME,
    Action.START_JOB: JobEvent.STARTED,
    Action.STOP_JOB: JobEvent.STOP_ASKED,
    Action.KILL_JOB: JobEvent.CRASHED,
}


def progress(world: World) -> World:
    """The world after engine and job went on by themselves by one step, without any fault."""
    if world.phase is D:
        world = world.on(HandoverEvent.VACATED)
    elif world.phase is R:
        world = world.on(HandoverEvent.RESTORED)
    if world.job is JobPhase.STARTING and not world.hung:
        world = world.on(JobEvent.STEPPED)
    elif world.job is JobPhase.SAVING and not world.hung:
        world = world.on(JobEvent.STOPPED)
    return world


def faults(world: World) -> Iterator[World]:
    """Every world after one more fault or change of mind."""
    worse = replace(world, faults_left=world.faults_left - 1)
    wish = S if world.desired is T else T
    yield replace(worse, desired=wish, handovers=0)
    if world.job.alive:
        yield replace(worse, hung=True)
        yield worse.on(JobEvent.CRASHED)
        yield worse.on(JobEvent.FAILED)
        yield worse.on(JobEvent.FINISHED)
    if world.phase is None:
        return
    yield replace(worse, phase=None, can_train=True)  # the engine died, and its leases with it
    for event in (
        HandoverEvent.REFUSED,
        HandoverEvent.DRAIN_FAILED,
        HandoverEvent.RESTORE_FAILED,
    ):
        if (world.phase, event) in TRANSITIONS:
            yield worse.on(event)
    if world.phase is D and not world.job.alive:
        yield worse.on(HandoverEvent.EMPTIED)  # it was an operator who drained it
    if world.phase is M:
        yield worse.on(HandoverEvent.RESUME)  # the operator is done
    lost = worse.on(JobEvent.CRASHED) if world.job.alive else worse
    yield lost.on(HandoverEvent.CHIP_LOST)


def after_all(world: World) -> Iterator[World]:
    """Every next world."""
    yield progress(world)
    for late in (False, True):
        action = world.action(late)
        if action is not None:
            yield world.on(EVENT_OF[action])
        elif world.phase is None and not world.job.alive:
            yield replace(world, phase=S, handovers=0)
    if world.faults_left:
        yield from faults(world)


@pytest.fixture(scope="module")
def worlds() -> set[World]:
    """Every world that seven faults or changes of mind can lead to."""
    seen = {World()}
    front = list(seen)
    while front:
        front = list({after for world in front for after in after_all(world)} - seen)
        seen.update(front)
    return seen


@pytest.mark.long
def test_no_chip_is_ever_in_two_roles(worlds: set[World]) -> None:
    assert len(worlds) > 1_000
    # Of chips in maintenance an operator decides, and nothing else moves them.
    assert {world.phase for world in worlds} == {None, *HandoverPhase}
    assert {world.job for world in worlds} == set(JobPhase)
    assert [world for world in worlds if world.roles() > 1] == []


def calmed(world: World) -> World:
    """The world when nothing more goes wrong and every wait passes, until it rests."""
    for _ in range(20):
        before = world
        action = world.action(late=True)
        if action is not None:
            world = world.on(EVENT_OF[action])
        elif world.phase is None and not world.job.alive:
            world = replace(world, phase=S, handovers=0)
        world = progress(world)
        if world == before:
            return world
    raise AssertionError(f"never rests: {world}")


@pytest.mark.long
def test_every_world_comes_to_rest_where_it_is_wanted(worlds: set[World]) -> None:
    for start in worlds:
        rest = calmed(start)
        if rest.phase is M:  # until the operator who drained it takes it back
            assert not rest.job.alive
            continue
        state = rest.state(late=True)
        wanted = reachable(state.groups[0], state.job, LIMITS)
        given_up = rest.handovers >= LIMITS.attempts_max
        if wanted is T:
            trains = rest.phase is T and rest.job is JobPhase.RUNNING
            assert trains or (rest.phase is S and given_up), (start, rest)
        else:
            assert rest.phase is S, (start, rest)  # a way back is never given up


def test_an_engine_waits_for_every_job_that_lives() -> None:
    for phase in JobPhase:
        first = World(phase=None, job=phase).action(late=False)
        asked = phase is JobPhase.SAVING
        assert (first is None) == (asked or not phase.alive)
    assert World(phase=None, job=JobPhase.SAVING).action(late=True) is Action.KILL_JOB
