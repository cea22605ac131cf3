"""Tenants of the night: training jobs, and batch inference, with what they make of groups."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from serving.analysis.day.training_yield import TrainingYield
from serving.analysis.tenants.checkpoint_store import CheckpointStore


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resharding:
    """A job that goes on with more or fewer groups without a checkpoint, [groups + 1] squared.

    Attributes:
        seconds: to move its state over the fabric, from groups to groups; infinite where the two
            are not of one recipe but for data parallelism.
        joules: of all its chips in that time.
        finish_s: half a step, which is ended first, [groups + 1].
    """

    seconds: Float64s
    joules: Float64s
    finish_s: Float64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTenant:
    """A training job.

    Attributes:
        weight: of a token.
        trained: by groups; 0 below its fewest, and no more beyond its most.
        tokens: that it is to train; None without an end.
        deadline_s: of the walk; None without one.
        resharding: None for a job that restarts from its checkpoint when its groups change.
        checkpoint: where it saves.

    Raises ConfigError for a deadline without tokens, and figures out of range.
    """

    name: str
    priority: int
    weight: float
    trained: TrainingYield
    tokens: float | None = None
    deadline_s: float | None = None
    resharding: Resharding | None = None
    checkpoint: CheckpointStore = CheckpointStore.DRIVES

    def __post_init__(self) -> None:
        _check(self.name, "weight", self.weight)
        if self.tokens is not None:
            _check(self.name, "tokens", self.tokens)
        if self.deadline_s is not None:
            _check(self.name, "deadline", self.deadline_s)
            if self.tokens is None:
                raise ConfigError(f"{self.name}: tokens", "none", "tokens due by the deadline")

    @property
    def work_per_s(self) -> Float64s:
        """Tokens per second by groups, [groups + 1]."""
        return self.trained.tokens_per_s

    @property
    def watts(self) -> Float64s:
        """Of its groups while it trains, [groups + 1]."""
        return self.trained.watts

    @property
    def tokens_per_work(self) -> float:
        """Work is counted in tokens."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Requests that arrive together, and when they are due; seconds of the walk."""

    at_s: float
    requests: float
    due_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < self.due_s < float("inf") or not 0 < self.requests < float("inf"):
            raise ConfigError("submission", self, "some requests, due after they arrive")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchInferenceTenant:
    """Offline requests, of which each group serves as many as it can, with no latency target.

    Attributes:
        weight: of an output token.
        requests_per_s, watts_at_work: of a group that is never without requests.
        in_flight: requests that a group works on at once.
        load_s, load_joules: until a group has the weights.
        submissions: by the time at which they are due.
    """

    name: str
    priority: int
    weight: float
    model: str
    groups: int
    groups_least: int
    groups_most: int
    requests_per_s: float
    watts_at_work: float
    idle_watts: float
    in_flight: float
    load_s: float
    load_joules: float
    prompt_tokens: float
    output_tokens: float
    submissions: tuple[Submission, ...]

    def __post_init__(self) -> None:
        for name in ("weight", "requests_per_s"):
            _check(self.name, name, getattr(self, name))
        due = [each.due_s for each in self.submissions]
        if not due or due != sorted(due):
            raise ConfigError(f"{self.name}: submissions", due, "some, by deadline")

    def _by_groups(self, of_group: float) -> Float64s:
        groups = np.arange(self.groups + 1, dtype=np.float64)
        of_all = np.minimum(groups, self.groups_most) * of_group
        return np.where(groups >= self.groups_least, of_all, 0.0)

    @property
    def work_per_s(self) -> Float64s:
        """Requests per second by groups, [groups + 1]."""
        return self._by_groups(self.requests_per_s)

    @property
    def watts(self) -> Float64s:
        """Of its groups, those beyond its most idle, [groups + 1]."""
        idle = np.arange(self.groups + 1) * self.idle_watts
        return idle + self._by_groups(self.watts_at_work - self.idle_watts)

    @property
    def tokens_per_work(self) -> float:
        """Output tokens of a request, in the mean."""
        return self.output_tokens


Tenant = TrainingTenant | BatchInferenceTenant


def _check(name: str, field: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name}: {field}", value, "above 0")
