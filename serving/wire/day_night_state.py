"""Day and night as the control API shows it: frozen and plain, named as in control.proto.

The server's process makes it of what the engine and the job say. Times of the day are Unix time of
the day's own calendar, which may pass faster than emulated time.
"""

from typing import Annotated

from msgspec import Meta

from serving.wire.machine_state import Count, LeaseState, PhaseWord, Plain, VersionState

JobPhaseWord = Annotated[
    str,
    Meta(pattern="^(absent|starting|running|saving|stopped|finished|failed|crashed)$"),
]
"""A phase of `serving.policy.day_night.handover.JobPhase`; a test holds the two together."""

PublishWord = Annotated[str, Meta(pattern="^(never|if-better)$")]
"""One of `day_night_settings.PUBLISH`; a test holds the two together."""


class GroupState(Plain, frozen=True, kw_only=True):
    """A group of chips that change hands together, numbered from 0.

    Attributes:
        phase: as in LeaseState.
        desired: the phase that the policy, or whoever set it, wants.
        lease: its lease's number while it does not serve.
        failures: refused or failed hand-overs in a row; `trouble` is what the last one said.
    """

    group: Count
    chips: tuple[Count, ...]
    phase: PhaseWord
    desired: PhaseWord
    lease: Count | None
    failures: Count
    trouble: str


class JobState(Plain, frozen=True, kw_only=True):
    """The training job, by its process and its directory.

    Attributes:
        phase: absent, starting, running, saving, stopped, finished, failed or crashed.
        chips: those that it was started with, numbered in the partition.
        loss: of the last step, nats per token; `held_out_loss` of the last evaluation.
        emulated_s: that it has trained; `joules` and `watts` of its chips.
        checkpoint_step: of the newest whole checkpoint.
        failures: failed starts and crashes in a row.
        trouble: of the last failure when it was, why, what is tried next and when, by the wall;
            empty once the job has done a step again. Asking for it anew does not empty it.
        failed_unix_s: when that was; `next_try_unix_s` is when a start is due. None without.
    """

    phase: JobPhaseWord
    directory: str
    chips: tuple[Count, ...]
    pid: Count | None
    step: Count
    tokens: Count
    loss: float | None
    held_out_loss: float | None
    emulated_s: float
    joules: float
    watts: float
    checkpoint_step: Count | None
    failures: Count
    trouble: str
    failed_unix_s: float | None = None
    next_try_unix_s: float | None = None


class ForecastState(Plain, frozen=True, kw_only=True):
    """The peak of demand within the next `window_s` seconds of the day, requests per emulated s.

    Attributes:
        high_per_s: it stays below with `confidence`; None while too little is known to say.
    """

    window_s: float
    expected_per_s: float
    high_per_s: float | None
    confidence: float


class DayNightState(Plain, frozen=True, kw_only=True):
    """Who serves, who trains, and why.

    Attributes:
        policy: its text, or "manual"; `policy_words` say what it does and assumes.
        day_s: the time of day; `time_of_day` is the same for a reader, in the policy's time zone.
        day_length_s: emulated seconds of a day.
        groups_desired: how many groups are to serve; `reason` says why.
        next_change_day_s: when the policy, by what it sees now, next wants another number; None
            where it does not within a day, or nobody can say. `next_change_if` is what that takes,
            empty for a policy that goes by the clock.
        load_per_s: requests per emulated second, over the last minutes of the day.
        group_requests_per_s: what a group is taken to serve within `slo`; None when nobody has said
            so, and the load is not weighed. `group_requests_source` is who says it.
        ttft_attainment: share of the recent requests whose first token was in time, since the
            number of serving groups last changed; None of too few.
        forecasts: of a policy that makes any, the windows that it looks at.
        burst_response_s: emulated seconds until the groups that a burst needs serve again, at most;
            the first `burst_seen_s` of them until the load is seen whole.
        return_s: emulated seconds that a group took the last time from being called back to
            serving, its job's saving included; None before the first.
        publish: never, or if-better; `published` is what the last attempt came to.
        leases, versions: as in MachineState.
        restarts: how often the controller has failed and begun again; `trouble` is why, the last
            time.
    """

    policy: str
    policy_words: str
    emulated_s: float
    day_s: float
    time_of_day: str
    day_length_s: float
    groups_desired: Count
    reason: str
    next_change_day_s: float | None
    next_change_if: str
    load_per_s: float
    group_requests_per_s: float | None
    group_requests_source: str
    slo: str
    ttft_attainment: float | None
    forecasts: tuple[ForecastState, ...]
    burst_response_s: float
    burst_seen_s: float
    return_s: float | None
    groups: tuple[GroupState, ...]
    job: JobState
    publish: PublishWord
    published: str
    leases: tuple[LeaseState, ...]
    versions: tuple[VersionState, ...]
    restarts: Count
    trouble: str
