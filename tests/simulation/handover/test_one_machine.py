"""One hand-over machine: a live server and a simulated day go through the same phases.

The same events go both ways: to the server as leases of an engine, which takes them through its own
table, and as what a job's process shows; to the day as they are. Both sides then do what is due
until nothing is.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analysis.day.leased_groups import LeasedGroups
from serving.analysis.day.training_yield import GroupHandover
from serving.policy.day_night.handover import (
    JOB_TRANSITIONS,
    TRANSITIONS,
    Action,
    HandoverEvent,
    HandoverPhase,
    JobEvent,
    JobPhase,
    transition,
)
from serving.policy.day_night.handover_machine import (
    Desired,
    GroupHappened,
    HandoverState,
    JobHappened,
    next_limit_s,
)
from serving.server.day_night.job_record import JobRecord
from serving.server.day_night.live_handover import JobSeen, LiveHandover
from serving.simulator.simulated_job import LIMITS
from serving.wire.machine_state import FOR_MAINTENANCE, FOR_TRAINING, LeaseState
from tests.serving.analysis.day.days import trained
from tests.serving.server.day_night.lending_engine import a_lease

S, D, T = HandoverPhase.SERVING, HandoverPhase.DRAINING, HandoverPhase.TRAINING
R, M = HandoverPhase.RESTORING, HandoverPhase.MAINTENANCE
NEVER_S = 1e9
SLOW = GroupHandover(
    drain_s=NEVER_S, restore_s=NEVER_S, restore_joules=0.0, moved_requests_per_rate_s=0.0
)
"""Nothing ends by itself within a test: each end is one of its events."""

ENDS = {
    JobEvent.STOPPED: JobPhase.STOPPED,
    JobEvent.FINISHED: JobPhase.FINISHED,
    JobEvent.FAILED: JobPhase.FAILED,
    JobEvent.CRASHED: JobPhase.CRASHED,
}


class Live:
    """A server's adapter before an engine and a job that do at once what they are asked."""

    def __init__(self, groups: int) -> None:
        self.now_s = 0.0
        self._groups = groups
        self._leases: list[LeaseState] = []
        self._job = JobSeen()
        self._starts = 0
        self._nothing_to_save = False
        self._handover = LiveHandover(chips=groups, group_chips=1, limits=LIMITS)
        self._act()

    @property
    def state(self) -> HandoverState:
        return self._handover.state

    def want(self, phases: Sequence[HandoverPhase]) -> None:
        self._handover.want(phases, now_s=self.now_s)
        self._act()

    def group_event(self, group: int, event: HandoverEvent, *, maintenance: bool = False) -> None:
        self._engine(group, event, maintenance=maintenance)
        self._act()

    def job_event(self, event: JobEvent) -> None:
        self._process(event)
        self._act()

    def wait(self, seconds: float) -> None:
        """Look whenever time alone makes something due, as looks that follow closely would."""
        if self._nothing_to_save and self.state.job.phase is JobPhase.SAVING:
            self.job_event(JobEvent.STOPPED)
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, next_limit_s(self.state, now_s=self.now_s, limits=LIMITS))
            self._act()

    def _engine(self, group: int, event: HandoverEvent, *, maintenance: bool = False) -> None:
        """What the engine does: it takes the event through its table, or refuses."""
        lease = self._lease(group)
        if event is HandoverEvent.REFUSED:
            self._handover.refused(group, "no room", now_s=self.now_s)
        elif event is HandoverEvent.DRAIN:
            purpose = FOR_MAINTENANCE if maintenance else FOR_TRAINING
            self._leases.append(a_lease(len(self._leases) + 1, (group,), purpose=purpose))
        elif lease is not None:
            self._leases[lease.number - 1] = msgspec.structs.replace(
                lease,
                phase=transition(HandoverPhase(lease.phase), event),
                lost_chips=(group,) if event is HandoverEvent.CHIP_LOST else lease.lost_chips,
            )

    def _lease(self, group: int) -> LeaseState | None:
        going = [one for one in self._leases if one.chips == (group,) and one.phase != S]
        return going[-1] if going else None

    def _process(self, event: JobEvent, chips: Sequence[int] = ()) -> None:
        """What the job's process and its directory show then."""
        match event:
            case JobEvent.STARTED:
                self._starts += 1
                record = JobRecord(pid=self._starts, started_s=self.now_s, chips=tuple(chips))
                self._job = JobSeen(record=record, phase=JobPhase.STARTING, step=0)
            case JobEvent.STOP_ASKED:
                self._nothing_to_save = self.state.job.phase is JobPhase.STARTING
                self._handover.stop_asked(now_s=self.now_s)
            case JobEvent.FORGIVEN:
                self._handover.forgive(now_s=self.now_s)
            case JobEvent.RAN:
                self._job = replace(self._job, phase=JobPhase.RUNNING)
            case JobEvent.STEPPED:
                step = (self._job.step or 0) + 1
                self._job = replace(self._job, phase=JobPhase.RUNNING, step=step)
            case JobEvent.HEARD:
                self._job = replace(self._job, heard_s=self.now_s)
            case _:
                self._job = replace(self._job, phase=ENDS[event])

    def _act(self) -> None:
        """Look and act until nothing is due."""
        for _ in range(20):
            emulated_s = self.now_s
            self._handover.see(self._leases, self._job, now_s=self.now_s, emulated_s=emulated_s)
            steps = self._handover.want(self.state.desired, now_s=self.now_s)
            if not steps:
                return
            for step in steps:
                self._do(step.action, step.group, step.chips)
        raise AssertionError(f"never rests: {self.state}")

    def _do(self, action: Action, group: int | None, chips: Sequence[int]) -> None:
        if group is None:
            events = {Action.START_JOB: JobEvent.STARTED, Action.STOP_JOB: JobEvent.STOP_ASKED}
            self._process(events.get(action, JobEvent.CRASHED), chips)
            return
        serving = sum(self._lease(each) is None for each in range(self._groups))
        answers = {
            Action.DRAIN: HandoverEvent.DRAIN if serving > 1 else HandoverEvent.REFUSED,
            Action.CANCEL: HandoverEvent.CANCELLED,
            Action.RESUME: HandoverEvent.RESUME,
        }
        self._engine(group, answers[action])


class Virtual:
    """A simulated day in which nothing ends by itself."""

    def __init__(self, groups: int) -> None:
        endless = np.full(groups + 1, NEVER_S)
        job = replace(trained(groups, least=1), save_s=endless, start_s=endless)
        self.now_s = 0.0
        self._day = LeasedGroups(trained=job, handover=SLOW, group_idle_watts=0.0)

    @property
    def state(self) -> HandoverState:
        return self._day.state

    def want(self, phases: Sequence[HandoverPhase]) -> None:
        self._day.take(Desired(phases=tuple(phases)))

    def group_event(self, group: int, event: HandoverEvent, *, maintenance: bool = False) -> None:
        lost = (group,) if event is HandoverEvent.CHIP_LOST else ()
        self._day.take(GroupHappened(group=group, event=event, chips=lost, maintenance=maintenance))

    def job_event(self, event: JobEvent) -> None:
        self._day.take(JobHappened(event=event))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._day.advance(self.now_s)


class Both:
    """The two sides; each event must leave them alike, and keep what always holds."""

    def __init__(self, groups: int) -> None:
        self.sides = (Live(groups), Virtual(groups))
        self.all_serve = (S,) * groups
        self.check()

    @property
    def state(self) -> HandoverState:
        return self.sides[0].state

    def want(self, *phases: HandoverPhase) -> None:
        for side in self.sides:
            side.want(phases)
        self.check()

    def group_event(self, group: int, event: HandoverEvent, *, maintenance: bool = False) -> None:
        for side in self.sides:
            side.group_event(group, event, maintenance=maintenance)
        self.check()

    def job_event(self, event: JobEvent) -> None:
        for side in self.sides:
            side.job_event(event)
        self.check()

    def wait(self, seconds: float) -> None:
        for side in self.sides:
            side.wait(seconds)
        self.check()

    def check(self) -> None:
        live, virtual = (shown(side.state) for side in self.sides)
        assert live == virtual

    def check_roles(self) -> None:
        """No chip is in two roles, and no job on chips that have left."""
        state = self.state
        if state.job.phase.alive:
            held = {chip for group in state.groups if group.phase is T for chip in group.chips}
            assert held.issuperset(state.job.chips)
            assert not set(state.job.chips) & {c for g in state.groups for c in g.lost_chips}

    def on_its_way(self) -> None:
        """Let what goes on by itself end, once each."""
        for group in self.state.groups:
            if group.phase is D:
                out = HandoverEvent.EMPTIED if group.in_maintenance else HandoverEvent.VACATED
                self.group_event(group.number, out)
            elif group.phase is R:
                self.group_event(group.number, HandoverEvent.RESTORED)
        job = self.state.job.phase
        if job is JobPhase.STARTING:
            self.job_event(JobEvent.STEPPED)
        elif job is JobPhase.SAVING:
            self.job_event(JobEvent.STOPPED)


def shown(state: HandoverState) -> tuple[object, ...]:
    """What both sides must agree on."""
    job = state.job
    groups = [
        (one.phase, one.desired, one.in_maintenance, one.lost_chips, one.failures.count)
        for one in state.groups
    ]
    return (groups, job.phase, job.chips, job.starts.count)


def test_a_night_by_hand() -> None:
    both = Both(3)
    both.want(S, T, T)
    assert both.state.phases == (S, D, D)
    both.want(S, S, T)  # the first is asked back while it drains
    assert both.state.phases == (S, S, D)
    both.on_its_way()
    assert (both.state.phases, both.state.job.chips) == ((S, S, T), (2,))
    both.want(S, T, T)
    both.on_its_way()  # it comes, and the job saves and starts on both
    assert (both.state.phases, both.state.job.phase) == ((S, T, T), JobPhase.STARTING)
    assert both.state.job.chips == (1, 2)
    both.on_its_way()
    both.want(S, S, S)
    both.wait(3_600.0)
    assert (both.state.phases, both.state.job.phase) == ((S, T, T), JobPhase.SAVING), "it saves"
    both.on_its_way()
    assert (both.state.phases, both.state.job.phase) == ((S, R, R), JobPhase.STOPPED)
    both.on_its_way()
    assert both.state.phases == (S, S, S)


ANSWERS = {JobEvent.STARTED, JobEvent.STOP_ASKED}
"""What a job meets only because the machine asked for it."""

OF_MAINTENANCE = {HandoverEvent.EMPTIED, HandoverEvent.SENT_BACK}
OF_TRAINING = {HandoverEvent.VACATED, HandoverEvent.RESTORE_FAILED}


def can_be(both: Both, group: int, event: HandoverEvent) -> bool:
    """Whether an engine can say so now. A drain is called off because it was asked for."""
    one = both.state.groups[group]
    other = OF_TRAINING if one.in_maintenance else OF_MAINTENANCE
    lost_back = one.in_maintenance and one.phase is R and event is HandoverEvent.CHIP_LOST
    called_off = event is HandoverEvent.CANCELLED and not one.in_maintenance
    possible = (one.phase, event) in TRANSITIONS and event not in other
    return possible and not lost_back and not called_off


def changes(both: Both) -> Iterator[tuple[object, Callable[[Both], None]]]:
    """Everything that can happen now: its name, and how. Group 0 always serves."""
    for wish in (S, T):
        yield wish, lambda on, wish=wish: on.want(S, wish)
    for event in HandoverEvent:
        if can_be(both, 1, event):
            yield event, lambda on, event=event: on.group_event(1, event)
    if (both.state.phases[1], HandoverEvent.DRAIN) in TRANSITIONS:
        drain = HandoverEvent.DRAIN
        yield "maintenance", lambda on: on.group_event(1, drain, maintenance=True)
    for job_event in JobEvent:
        possible = (both.state.job.phase, job_event) in JOB_TRANSITIONS
        if possible and job_event not in ANSWERS:
            yield job_event, lambda on, event=job_event: on.job_event(event)
    yield "time", lambda on: on.wait(LIMITS.backoff_max_s)


@pytest.mark.slow
def test_every_event_in_every_phase_leaves_both_alike() -> None:
    """Every state that a group and its job can come to, and all that can happen in it."""
    start = Both(2)
    seen, front, met = {key(start)}, [start], set()
    while front:
        both = front.pop()
        for name, change in changes(both):
            after = deepcopy(both)
            change(after)  # which holds the two sides together
            met.add((both.state.phases[1], name))
            met.add((both.state.job.phase, name))
            if key(after) not in seen:
                seen.add(key(after))
                front.append(after)
    expected = set(TRANSITIONS)
    expected |= {pair for pair in JOB_TRANSITIONS if pair[1] not in ANSWERS}
    assert expected <= met, expected - met


def key(both: Both) -> tuple[object, ...]:
    """A state, whatever the time is; failures beyond the second are more of the same."""
    group, job = both.state.groups[1], both.state.job
    tries = min(group.failures.count, 2), min(job.starts.count, 2)
    group_state = (group.phase, group.desired, group.in_maintenance, group.lost_chips)
    return (*group_state, job.phase, job.chips, tries)


CHANGES = st.one_of(
    st.tuples(st.just("want"), st.lists(st.sampled_from([S, T]), min_size=3, max_size=3)),
    st.tuples(st.just("way"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 5.0, 10.0, 60.0])),
    st.tuples(
        st.just("group"),
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(
                [
                    HandoverEvent.CHIP_LOST,
                    HandoverEvent.DRAIN_FAILED,
                    HandoverEvent.RESTORE_FAILED,
                    HandoverEvent.REFUSED,
                ]
            ),
        ),
    ),
    st.tuples(st.just("maintenance"), st.integers(0, 2)),
    st.tuples(
        st.just("job"),
        st.sampled_from([each for each in JobEvent if each not in ANSWERS]),
    ),
)


@pytest.mark.long
@settings(max_examples=300)
@given(changes=st.lists(CHANGES, max_size=25))
def test_whatever_happens_both_go_the_same_way_and_every_lease_ends(
    changes: list[tuple[str, object]],
) -> None:
    both = Both(3)
    for kind, what in changes:
        happen(both, kind, what)
        both.check_roles()
    both.want(S, S, S)
    for _ in range(8):
        both.on_its_way()
        both.wait(LIMITS.backoff_max_s)
        for number, phase in enumerate(both.state.phases):
            if phase is M:
                operate(both, number)
    assert both.state.phases == both.all_serve
    assert not both.state.job.phase.alive


def happen(both: Both, kind: str, what: object) -> None:
    """One change, if it can be now."""
    state = both.state
    match kind, what:
        case "want", list(phases):
            both.want(*phases)
        case "way", _:
            both.on_its_way()
        case "wait", float(seconds):
            both.wait(seconds)
        case "group", (int(group), HandoverEvent() as event):
            if can_be(both, group, event):
                both.group_event(group, event)
        case "maintenance", int(group):
            operate(both, group)
        case "job", JobEvent() as event:
            if (state.job.phase, event) in JOB_TRANSITIONS:
                both.job_event(event)


def operate(both: Both, group: int) -> None:
    """An operator drains a group that serves, but the last one, or takes it back."""
    phases = both.state.phases
    if phases[group] is S and phases.count(S) > 1:
        both.group_event(group, HandoverEvent.DRAIN, maintenance=True)
    elif phases[group] is M:
        both.group_event(group, HandoverEvent.RESUME)
