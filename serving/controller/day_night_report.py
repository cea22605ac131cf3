"""What the controller saw and did, for the control service: a look becomes a DayNightState."""

from dataclasses import replace
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from emulator.units import NS_PER_S
from serving.controller.day_clock import DAY_S
from serving.controller.day_night import DayNight, Look
from serving.controller.day_night_state import DayNightState, GroupState, JobState
from serving.daynight.observation import Observation
from serving.daynight.policy import Policy

_LOOK_AHEAD_S: Final = 900.0
_BY_THE_CLOCK: Final = ("never", "fixed", "schedule", "price")
"""Policies whose future follows from the present alone: others wait for what demand will be."""


def day_night_state(day_night: DayNight, look: Look) -> DayNightState:
    """Everything that there is to say."""
    settings, observed = day_night.settings, look.observed
    policy = day_night.policy
    return DayNightState(
        policy=day_night.policy_text,
        policy_words="groups change hands by control calls"
        if policy is None
        else policy.describe(),
        emulated_s=look.watch.emulated_s,
        day_s=observed.now_s,
        time_of_day=time_of_day(observed.now_s, settings.zone),
        day_length_s=settings.day_length_s,
        groups_desired=look.decision.serving_groups,
        reason=look.decision.reason,
        next_change_day_s=None if policy is None else next_change(policy, observed),
        load_per_s=observed.load_per_s,
        return_s=day_night.returns.last_s,
        groups=tuple(
            GroupState(
                group=group.number,
                chips=group.chips,
                phase=group.phase,
                desired=desired,
                lease=None if group.lease is None else group.lease.number,
                failures=0 if tries is None else tries.count,
                trouble=day_night.tries.words(group.number),
            )
            for group, desired in zip(look.groups, look.desired, strict=True)
            for tries in (day_night.tries.failures.get(group.number),)
        ),
        job=_job_state(day_night, look),
        publish=settings.publish,
        published=day_night.published,
        leases=look.watch.leases,
        restarts=day_night.restarts,
        trouble=day_night.trouble,
    )


def _job_state(day_night: DayNight, look: Look) -> JobState:
    seen, status = look.job.observed, day_night.job.status()
    told = JobState(
        phase=seen.phase,
        directory=str(day_night.job.directory),
        chips=look.job.chips,
        pid=day_night.job.pid,
        step=0,
        tokens=0,
        loss=None,
        held_out_loss=None,
        emulated_s=0.0,
        joules=0.0,
        watts=0.0,
        checkpoint_step=None,
        failures=seen.starts.count,
        trouble=day_night.job.last_words() if seen.starts.count else "",
    )
    if status is None:
        return told
    return msgspec.structs.replace(
        told,
        step=status.step,
        tokens=status.tokens,
        loss=status.loss,
        held_out_loss=status.held_out_nats,
        emulated_s=status.emulated_ns / NS_PER_S,
        joules=status.joules,
        watts=status.watts if seen.phase.alive else 0.0,
        checkpoint_step=status.checkpoint_step if status.checkpoint else None,
    )


def time_of_day(day_s: float, zone: str) -> str:
    """A moment of the day's calendar for a reader: `Mon 22:05 CET`."""
    return datetime.fromtimestamp(day_s, ZoneInfo(zone)).strftime("%a %H:%M %Z")


def next_change(policy: Policy, observed: Observation) -> float | None:
    """When a policy that goes by the clock next wants another number of groups, to 15 minutes.

    In the day's calendar; None when it does not within a day, or goes by demand.
    """
    if policy.name not in _BY_THE_CLOCK:
        return None
    now = policy.decide(observed).serving_groups
    for ahead in range(1, int(DAY_S / _LOOK_AHEAD_S) + 1):
        later_s = (observed.now_s // _LOOK_AHEAD_S + ahead) * _LOOK_AHEAD_S
        later = observed_at(observed, later_s)
        if policy.decide(later).serving_groups != now:
            return later_s
    return None


def observed_at(observed: Observation, now_s: float) -> Observation:
    """The same machine and load at another moment, with nothing changed in between."""
    return replace(
        observed, now_s=now_s, since_change_s=observed.since_change_s + now_s - observed.now_s
    )
