"""Groups of a training job: it starts, trains, saves, and goes on with more or fewer groups."""

from typing import Final

from serving.analysis.tenants.tenant import TrainingTenant
from serving.analysis.tenants.tenant_pool import NEVER, TenantPool
from serving.policy.day_night.handover import Action, HandoverPhase, JobEvent, JobPhase
from serving.policy.day_night.handover_machine import (
    GroupHappened,
    HandoverStep,
    Happened,
    JobHappened,
)

_TRAINING: Final = HandoverPhase.TRAINING
_ROUNDING: Final = 1e-9  # of the tokens to train


class JobPool(TenantPool):
    """Mutable; times ascend."""

    def __init__(self, tenant: TrainingTenant, *, groups: int, group_idle_watts: float) -> None:
        least = tenant.trained.job_groups_min
        super().__init__(groups=groups, group_idle_watts=group_idle_watts, groups_least=least)
        self.tenant = tenant
        self.trained = 0.0  # tokens, without those undone
        self.resizes = 0
        self.finished_s: float | None = None
        self._unsaved = 0.0
        self._ready_s = NEVER  # when a start or a save is over
        self._pause_watts = 0.0
        self._kept = 0  # groups that hold the state of a job between two sizes

    @property
    def left(self) -> float:
        """Tokens that are still to be trained; infinite without an end."""
        tokens = self.tenant.tokens
        return NEVER if tokens is None else max(0.0, tokens - self.trained)

    @property
    def is_done(self) -> bool:
        """Whether all are trained, but for rounding."""
        tokens = self.tenant.tokens
        return tokens is not None and self.left <= _ROUNDING * tokens

    @property
    def save_s(self) -> float:
        """Before a group goes, by the job's last start."""
        return float(self.tenant.trained.save_s[len(self.state.job.chips)])

    @property
    def _rate(self) -> float:
        """Tokens per second of the running job."""
        return float(self.tenant.trained.tokens_per_s[len(self.state.job.chips)])

    def next_s(self, now_s: float) -> float:
        """When it is started or saved, or has trained all."""
        if self.state.job.phase is JobPhase.RUNNING:
            return now_s + self.left / self._rate
        return self._ready_s

    def happened(self, now_s: float) -> list[Happened]:
        """It has started, saved, or trained all and begins to save."""
        match self.state.job.phase:
            case JobPhase.RUNNING if self.is_done:
                return [JobHappened(event=JobEvent.STOP_ASKED)]
            case JobPhase.STARTING if self._ready_s <= now_s:
                return [JobHappened(event=JobEvent.STEPPED)]
            case JobPhase.SAVING if self._ready_s <= now_s:
                over = JobEvent.FINISHED if self.is_done else JobEvent.STOPPED
                return [JobHappened(event=over)]
        return []

    def act(self, step: HandoverStep, *, now_s: float) -> None:
        """Carry out an action: each takes hold at once, and lasts."""
        event = {
            Action.START_JOB: JobHappened(event=JobEvent.STARTED, chips=step.chips),
            Action.STOP_JOB: JobHappened(event=JobEvent.STOP_ASKED),
        }[step.action]
        self.take(event, now_s=now_s)

    def take(self, event: GroupHappened | JobHappened, *, now_s: float) -> None:
        """The state after an event, and what the job's begin with it."""
        was = self.state.job.phase
        super().take(event, now_s=now_s)
        if isinstance(event, GroupHappened):
            return
        job = self.state.job
        match event.event:
            case JobEvent.STARTED:
                self._start(len(job.chips), now_s)
            case JobEvent.STOP_ASKED:
                self._stop(len(job.chips), now_s, saves=was is JobPhase.RUNNING)
            case JobEvent.STOPPED | JobEvent.FINISHED:
                self._unsaved *= bool(self._kept)
                self._ready_s = NEVER
                if event.event is JobEvent.FINISHED:
                    self.finished_s = now_s
            case JobEvent.STEPPED:
                self._ready_s = NEVER

    def leave(self, group: int, *, now_s: float) -> None:
        """A state that no checkpoint has is lost with one of the groups that keep it."""
        super().leave(group, now_s=now_s)
        if self._kept > len(self.there):
            self._lose()

    def _lose(self) -> None:
        """All that was trained since the newest checkpoint."""
        self.totals.tokens_undone += self._unsaved
        self.trained -= self._unsaved
        self._unsaved, self._kept = 0.0, 0

    def _start(self, groups: int, now_s: float) -> None:
        trained, resharding = self.tenant.trained, self.tenant.resharding
        seconds, joules = float(trained.start_s[groups]), float(trained.start_joules[groups])
        if self._kept and resharding is not None:
            kept, self._kept = self._kept, 0
            moved_s = float(resharding.seconds[kept, groups])
            if moved_s < NEVER:
                self.resizes += 1
                self._pause(now_s, moved_s, float(resharding.joules[kept, groups]))
                return
            seconds += float(trained.save_s[kept])
            joules += float(trained.save_joules[kept])
        self.totals.job_starts += 1
        self._pause(now_s, seconds, joules)

    def _stop(self, groups: int, now_s: float, *, saves: bool) -> None:
        """To its checkpoint, or, if enough groups stay, into their memory."""
        if not saves:  # a job that starts has nothing to save
            self._pause(now_s, 0.0, 0.0)
            return
        trained, resharding = self.tenant.trained, self.tenant.resharding
        stay = sum(
            group.phase is _TRAINING and group.desired is _TRAINING for group in self.state.groups
        )
        stay = min(stay, groups)
        if resharding is not None and not self.is_done and resharding.seconds[groups, stay] < NEVER:
            self._kept = stay
            finish_s = float(resharding.finish_s[groups])
            joules = float(resharding.joules[groups, stay]) + finish_s * float(
                trained.watts[groups]
            )
            self._pause(now_s, finish_s + float(resharding.seconds[groups, stay]), joules)
            return
        self._pause(now_s, float(trained.save_s[groups]), float(trained.save_joules[groups]))

    def _pause(self, now_s: float, seconds: float, joules: float) -> None:
        self._ready_s = now_s + seconds
        self._pause_watts = joules / seconds if seconds else 0.0

    def work(self, seconds: float, *, now_s: float) -> None:
        """Train, or pause; groups that the job has not, idle."""
        del now_s
        job, trained = self.state.job, self.tenant.trained
        at_job = len(job.chips) if job.phase.alive else 0
        self.count_idle(len(self.there) - at_job, seconds)
        if job.phase is JobPhase.RUNNING:
            tokens = float(trained.tokens_per_s[at_job]) * seconds
            self.times.training_s += at_job * seconds
            self.times.chips_at_work_s += float(trained.chips_at_work[at_job]) * seconds
            self.times.tokens += tokens
            self.times.joules += float(trained.watts[at_job]) * seconds
            self.trained += tokens
            self._unsaved += tokens
        elif at_job:
            self.count_pause(at_job, seconds, self._pause_watts)
            self.totals.tokens_lost += float(trained.tokens_per_s[at_job]) * seconds
