"""What the controller does next: a pure function of leases, job, wishes and failures.

The hand-over's table decides for each group (`serving.policy.day_night.handover`). One job trains
on all groups that are lent out, so what the groups ask of it is joined here: it begins when no
group is on its way to it any more, and begins anew, from its checkpoint, when its chips are to be
others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from serving.policy.day_night.handover import (
    Action,
    Failures,
    GroupObserved,
    HandoverLimits,
    JobObserved,
    JobPhase,
    Phase,
    next_action,
    reachable,
)
from serving.wire.machine_state import FOR_MAINTENANCE, LeaseState

_OF_GROUP: Final = (Action.DRAIN, Action.CANCEL, Action.RESUME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Chips that change hands together; `lease` is the one that they are out with, if any."""

    number: int
    chips: tuple[int, ...]
    lease: LeaseState | None

    @property
    def phase(self) -> Phase:
        """Where it is in the hand-over."""
        return Phase.SERVING if self.lease is None else Phase(self.lease.phase)

    @property
    def in_maintenance(self) -> bool:
        """Whether an operator has some of its chips, or they are on the way there or back."""
        return self.lease is not None and self.lease.purpose == FOR_MAINTENANCE

    @property
    def working_chips(self) -> tuple[int, ...]:
        """Those that have not failed while they are out."""
        lost = () if self.lease is None else self.lease.lost_chips
        return tuple(chip for chip in self.chips if chip not in lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """The job as a whole: `chips` are those that it was started with, whether or not it runs."""

    observed: JobObserved
    chips: tuple[int, ...]

    def for_group(self, group: Group) -> JobObserved:
        """The job as a job of this group: absent while it runs on other chips alone."""
        if self.observed.phase.alive and not set(group.chips) & set(self.chips):
            return replace(self.observed, phase=JobPhase.ABSENT, stop_asked_s=None)
        return self.observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do: to `group`, or, when that is None, to the job, on `chips` if it starts."""

    action: Action
    group: Group | None = None
    chips: tuple[int, ...] = ()


def groups_of(chips: int, group_chips: int, leases: Iterable[LeaseState]) -> tuple[Group, ...]:
    """The groups of a partition's first `chips`, each with the lease that has one of its chips."""
    going = [lease for lease in leases if lease.phase != Phase.SERVING]
    groups = []
    for number in range(chips // group_chips):
        members = tuple(range(number * group_chips, (number + 1) * group_chips))
        lease = next((one for one in reversed(going) if set(one.chips) & set(members)), None)
        groups.append(Group(number=number, chips=members, lease=lease))
    return tuple(groups)


def wishes(groups: Sequence[Group], serving: int) -> tuple[Phase, ...]:
    """What each group is to do when `serving` of them serve.

    Those that are out stay out before others leave; otherwise the last ones leave first. Those in
    maintenance are to serve, but do not until an operator has brought them back.
    """
    out = (Phase.DRAINING, Phase.TRAINING)
    there = [group for group in groups if not group.in_maintenance]
    by_stay = sorted(there, key=lambda group: (group.phase in out, group.number))
    stays = {group.number for group in by_stay[:serving]}
    stays |= {group.number for group in groups if group.in_maintenance}
    return tuple(Phase.SERVING if group.number in stays else Phase.TRAINING for group in groups)


def plan(
    groups: Sequence[Group],
    desired: Sequence[Phase],
    job: JobSeen,
    *,
    handovers: Mapping[int, Failures],
    now_s: float,
    limits: HandoverLimits,
) -> tuple[Step, ...]:
    """At most one step for each group, and at most one for the job, which comes first."""
    steps, asked = [], {}
    both = [pair for pair in zip(groups, desired, strict=True) if not pair[0].in_maintenance]
    groups, desired = [group for group, _ in both], [wish for _, wish in both]
    for group, wish in both:
        observed = GroupObserved(
            phase=group.phase,
            handovers=handovers.get(group.number, Failures()),
            can_train=bool(group.working_chips),
        )
        seen = job.for_group(group)
        action = next_action(wish, observed, seen, now_s=now_s, limits=limits)
        if action in _OF_GROUP:
            steps.append(Step(action=action, group=group))
        elif action is not None:
            asked[group.number] = action
    of_job = _job_step(
        groups, desired, job, asked, coming=_coming(groups, desired, steps, job, limits)
    )
    return (*of_job, *steps)


def _coming(
    groups: Sequence[Group],
    desired: Sequence[Phase],
    steps: Sequence[Step],
    job: JobSeen,
    limits: HandoverLimits,
) -> bool:
    """Whether a group is on its way to the job."""
    leaving = {step.group.number for step in steps if step.group and step.action is Action.DRAIN}
    for group, wish in zip(groups, desired, strict=True):
        observed = GroupObserved(phase=group.phase, can_train=bool(group.working_chips))
        wanted = reachable(wish, observed, job.for_group(group), limits)
        draining = group.phase is Phase.DRAINING and wanted is Phase.TRAINING
        if draining or group.number in leaving:
            return True
    return False


def _job_step(
    groups: Sequence[Group],
    desired: Sequence[Phase],
    job: JobSeen,
    asked: Mapping[int, Action],
    *,
    coming: bool,
) -> tuple[Step, ...]:
    """The one step that the job takes for what its groups ask of it."""
    alive = job.observed.phase.alive
    working = {chip for group in groups for chip in group.working_chips}
    if alive and not set(job.chips) <= working:
        # What a lost chip held is gone, so there is nothing whole to save.
        return (Step(action=Action.KILL_JOB),)
    for action in (Action.KILL_JOB, Action.STOP_JOB):
        if action in asked.values():
            return (Step(action=action),)
    if Action.START_JOB not in asked.values() or coming:
        return ()
    if alive:  # on fewer chips than it could have
        told = job.observed.stop_asked_s is not None
        return () if told else (Step(action=Action.STOP_JOB),)
    chips = [
        chip
        for group, wish in zip(groups, desired, strict=True)
        if group.phase is Phase.TRAINING and wish is Phase.TRAINING
        for chip in group.working_chips
    ]
    return (Step(action=Action.START_JOB, chips=tuple(chips)),)
