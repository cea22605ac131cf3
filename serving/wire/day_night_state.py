"""Day and night as the control API shows it: frozen and plain; see day_night.proto.

Made by the server's process from the engine's and the job's states. Times of the day are Unix time
of the day's own calendar, which may pass faster than emulated time.
"""

from typing import Annotated

from msgspec import Meta

from serving.wire.machine_state import (
    Count,
    LeaseState,
    PhaseWord,
    Plain,
    VersionState,
    share_without_lag,
)

JobPhaseWord = Annotated[
    str,
    Meta(pattern="^(absent|starting|running|saving|stopped|finished|failed|crashed)$"),
]
"""A phase of `serving.policy.day_night.handover.JobPhase`; a test compares them."""

PaceWord = Annotated[str, Meta(pattern="^(real|fast-forward)$")]
"""One of `serving.server.training.job_spec.TrainingPace`; a test compares them."""

PublishWord = Annotated[str, Meta(pattern="^(never|if-better)$")]
"""One of `day_night_settings.PUBLISH`; a test compares them."""


class GroupState(Plain, frozen=True, kw_only=True):
    """A group of chips that change hands together, numbered from 0."""

    group: Count
    chips: tuple[Count, ...]
    phase: PhaseWord
    desired: PhaseWord
    lease: Count | None
    failures: Count
    trouble: str


class JobState(Plain, frozen=True, kw_only=True):
    """The training job, by its process and its directory. A restart keeps `trouble`.

    `step` and `tokens` were computed, the host's `tokens_per_wall_s` of late; `trained_steps` and
    `trained_tokens` are what its emulated chips did in `emulated_s`, beside the `lag_s` in which
    they waited. A kill before `next_save_step` loses the steps after `checkpoint_step`.
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
    pace: PaceWord = "real"
    trained_steps: Count = 0
    trained_tokens: Count = 0
    lag_s: float = 0.0
    tokens_per_wall_s: float = 0.0
    next_save_step: Count = 0

    @property
    def trained_share(self) -> float | None:
        """What its chips have trained of what they would have without lag; None before a step."""
        return share_without_lag(self.emulated_s, self.lag_s)


class ForecastState(Plain, frozen=True, kw_only=True):
    """Peak of demand within the next `window_s` seconds of the day, requests per emulated s."""

    window_s: float
    expected_per_s: float
    high_per_s: float | None
    confidence: float


class DayNightState(Plain, frozen=True, kw_only=True):
    """Phases, policy and demand of the day, with reasons.

    `policy` is its text, or "manual". `next_change_day_s` is None without a change within a day or
    where it is unknown; `return_s` before the first return.
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
    tpot_attainment: float | None
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
