"""A question about a day of several served models and the night's tenants."""

from dataclasses import dataclass, replace

from emulator.errors import ConfigError
from emulator.specs.system import SystemSpec
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.replica_choice import ReplicaChoice, choose_replica
from serving.analysis.day.replica_run import ReplicaUnderTest
from serving.analysis.steady_state.sweep import Sweep
from serving.analysis.tenants.checkpoint_store import CheckpointStore
from serving.analysis.tenants.claims import Worth
from serving.analysis.tenants.tenant import Submission
from serving.policy.day_night.policy import Policy
from serving.simulator.job_cost import JobTerms
from serving.traffic.engine_limits import SchedulerLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaTerms:
    """A model, its requests, and a rank's limits."""

    sweep: Sweep
    lengths: ObservedLengths
    lengths_in_words: str
    limits: SchedulerLimits

    def choice(self, slo: Slo, group_chips: int | None) -> ReplicaChoice:
        """Of a replica of so many chips, or of any; raises ConfigError with the model's name."""
        asked = self.sweep.asked
        if group_chips is not None:
            asked = replace(asked, chips=(group_chips,))
        name = self.sweep.model.name
        try:
            return choose_replica(
                replace(self.sweep, asked=asked),
                slo,
                longest_tokens=int((self.lengths.prompt_tokens + self.lengths.output_tokens).max()),
                seats=self.limits.max_num_seqs,
            )
        except ConfigError as error:
            of = "" if group_chips is None else f" on groups of {group_chips} chips"
            raise ConfigError(f"{name}{of}: {error.field}", error.value, error.expected) from error

    def under_test(self, choice: ReplicaChoice, slo: Slo) -> ReplicaUnderTest:
        """The replica for simulation."""
        return ReplicaUnderTest(
            sweep=self.sweep,
            precision=choice.precision,
            candidate=choice.candidate,
            limits=self.limits.with_kv(choice.candidate.kv_capacity_tokens),
            lengths=self.lengths,
            slo=slo,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedQuestion:
    """A served model; its trace's highest rate is `peak_share` of what all groups would serve."""

    replica: ReplicaTerms
    slo: Slo
    trace: DayTrace
    begin_s: float
    peak_share: float
    policy: Policy

    @property
    def name(self) -> str:
        """The catalog's."""
        return self.replica.sweep.model.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobQuestion:
    """A training job, of at least and at most so many chips."""

    name: str
    priority: int
    weight: float
    terms: JobTerms
    checkpoint: CheckpointStore
    chips_least: int
    chips_most: int | None
    tokens: float | None
    deadline_s: float | None
    elastic: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchQuestion:
    """Batch inference: so many requests at each of `at_s`, due `deadline_s` later."""

    name: str
    priority: int
    weight: float
    replica: ReplicaTerms
    chips_least: int
    chips_most: int | None
    requests: float
    at_s: tuple[float, ...]
    deadline_s: float

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """By deadline."""
        return tuple(
            Submission(at_s=at_s, requests=self.requests, due_s=at_s + self.deadline_s)
            for at_s in sorted(self.at_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TenantSettings:
    """A question about a day; raises ConfigError without a served model, and for two of a name."""

    system: SystemSpec
    served: tuple[ServedQuestion, ...]
    tenants: tuple[JobQuestion | BatchQuestion, ...]
    worth: Worth
    length_s: float
    terms: WalkTerms
    judged: int
    handovers: JobTerms  # of groups: rates and start of reading weights
    grace_s: float

    def __post_init__(self) -> None:
        if not self.served:
            raise ConfigError("serve", "none", "a model that is served")
        for kind, names in (
            ("serve", [each.name for each in self.served]),
            ("tenants", [each.name for each in self.tenants]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ConfigError(kind, name, "each name once")
