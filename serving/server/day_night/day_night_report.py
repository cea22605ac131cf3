"""Converts a DayNightSnapshot to the control service's DayNightState."""

from dataclasses import replace
from math import isfinite
from typing import Final

import numpy as np

from emulator.units import NS_PER_S
from serving.policy.day_night.day_clock import DAY_S
from serving.policy.day_night.demand import DemandPolicy
from serving.policy.day_night.handover_settings import MANUAL
from serving.policy.day_night.history import BUCKETS_MAX
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Policy, decided
from serving.policy.day_night.quantile import QuantilePolicy
from serving.policy.day_night.schedule import local_time
from serving.server.day_night.controller import DayNight, DayNightSnapshot
from serving.server.day_night.job_failure import failure_words
from serving.server.training.job_status import NO_STATUS
from serving.wire.day_night_state import (
    DayNightState,
    ForecastState,
    GroupState,
    JobState,
)

_LOOK_AHEAD_S: Final = 900.0
_NO_DAY: Final = "nobody can say before a day has been seen"
_AS_BEFORE: Final = "if demand goes as it did a day before"
_REMEMBERED: Final = 8
"""Days of history for the prediction: all that a forecast compares."""


def day_night_state(day_night: DayNight, seen: DayNightSnapshot) -> DayNightState:
    """The controller's state for the control service."""
    settings, observed = day_night.settings, seen.observed
    policy = day_night.policy
    next_s, next_if = (None, "") if policy is None else next_change(policy, observed)
    seen_s, answered_s = day_night.burst_response_s(seen.watch.dilation)
    return DayNightState(
        policy=day_night.policy_text,
        policy_words=f"{MANUAL}: groups change hands by control calls"
        if policy is None
        else policy.describe(),
        emulated_s=seen.watch.emulated_s,
        day_s=observed.now_s,
        time_of_day=time_of_day(observed.now_s, settings.zone),
        day_length_s=settings.day_length_s,
        groups_desired=seen.decision.serving_groups,
        reason=seen.decision.reason,
        next_change_day_s=next_s,
        next_change_if=next_if,
        load_per_s=observed.load_per_s,
        group_requests_per_s=settings.group_requests_per_s,
        group_requests_source=settings.group_requests_source,
        slo=str(settings.slo),
        ttft_attainment=observed.ttft_attainment,
        tpot_attainment=observed.tpot_attainment,
        forecasts=forecasts(policy, observed),
        burst_response_s=answered_s,
        burst_seen_s=seen_s,
        return_s=day_night.handover.returns.last_s,
        groups=tuple(
            GroupState(
                group=group.number,
                chips=group.chips,
                phase=group.phase,
                desired=group.desired,
                lease=seen.leases[group.number].number if group.number in seen.leases else None,
                failures=group.failures.count,
                trouble=group.failures.words,
            )
            for group in seen.handover.groups
        ),
        job=_job_state(day_night, seen),
        publish=settings.publish,
        published=day_night.publisher.words,
        leases=seen.watch.leases,
        versions=seen.watch.versions,
        restarts=day_night.restarts,
        trouble=day_night.trouble,
    )


def _job_state(day_night: DayNight, seen: DayNightSnapshot) -> JobState:
    job, status = seen.handover.job, day_night.job.status() or NO_STATUS
    failure, following = day_night.handover.job_failure, day_night.next_try(seen)
    return JobState(
        phase=job.phase,
        directory=str(day_night.job.directory),
        chips=job.chips,
        pid=day_night.job.pid,
        step=status.step,
        tokens=status.tokens,
        loss=status.loss,
        held_out_loss=status.held_out_nats,
        emulated_s=status.emulated_ns / NS_PER_S,
        joules=status.joules,
        watts=status.watts if job.phase.alive else 0.0,
        checkpoint_step=status.checkpoint_step if status.checkpoint else None,
        failures=job.starts.count,
        trouble="" if failure is None else failure_words(failure, following),
        failed_unix_s=None if failure is None else failure.unix_s,
        next_try_unix_s=None if failure is None else following.unix_s,
        pace=day_night.settings.training.pace,
        trained_steps=status.trained_steps,
        trained_tokens=status.trained_tokens,
        lag_s=status.lag_ns / NS_PER_S,
        tokens_per_wall_s=status.tokens_per_wall_s,
        next_save_step=status.next_save_step,
    )


def time_of_day(day_s: float, zone: str) -> str:
    """The day's time for a reader: `Mon 22:05 CET`."""
    return local_time(day_s, zone).strftime("%a %H:%M %Z")


def forecasts(policy: Policy | None, observed: Observation) -> tuple[ForecastState, ...]:
    """The forecast of demand per window, for policies that follow it; empty for others."""
    if isinstance(policy, DemandPolicy):
        policy = QuantilePolicy()
    if not isinstance(policy, QuantilePolicy) or not len(observed.history):
        return ()
    found = []
    for window_s in policy.windows_s(observed):
        foretold = policy.forecast(observed, window_s)
        found.append(
            ForecastState(
                window_s=window_s,
                expected_per_s=foretold.expected_per_s,
                high_per_s=foretold.high_per_s if isfinite(foretold.high_per_s) else None,
                confidence=policy.confidence,
            )
        )
    return tuple(found)


def next_change(policy: Policy, observed: Observation) -> tuple[float | None, str]:
    """When a policy next wants another number of groups, to 15 minutes in the day's calendar, and
    on which condition; None if not within a day.

    A policy that weighs demand is given the last day's; None without one.
    """
    history = observed.history
    if policy.weighs_demand and len(history) * history.bucket_s < DAY_S:
        return None, _NO_DAY
    condition = _AS_BEFORE if policy.weighs_demand else ""
    now = decided(policy, observed).serving_groups
    for ahead in range(1, int(DAY_S / _LOOK_AHEAD_S) + 1):
        later_s = (observed.now_s // _LOOK_AHEAD_S + ahead) * _LOOK_AHEAD_S
        later = observed_at(observed, later_s)
        if policy.weighs_demand:
            later = as_a_day_before(later)
        if decided(policy, later).serving_groups != now:
            return later_s, condition
    return None, condition


def as_a_day_before(observed: Observation) -> Observation:
    """The same moment with the demand of a day before, no queue, and all requests in time.

    Needs a day of history.
    """
    history = observed.history
    day = round(DAY_S / history.bucket_s)
    ahead = int((observed.now_s - history.end_s) // history.bucket_s)
    known = history.requests_per_s[-_REMEMBERED * day :]
    rates = np.concatenate([known, known[-day:][:ahead]])[-BUCKETS_MAX:]
    longer = replace(history, requests_per_s=rates, end_s=history.end_s + ahead * history.bucket_s)
    return replace(
        observed,
        history=longer,
        load_per_s=float(rates[-1]),
        queue=0,
        ttft_attainment=None,
        tpot_attainment=None,
    )


def observed_at(observed: Observation, now_s: float) -> Observation:
    """The same machine and load at another moment."""
    return replace(
        observed, now_s=now_s, since_change_s=observed.since_change_s + now_s - observed.now_s
    )
