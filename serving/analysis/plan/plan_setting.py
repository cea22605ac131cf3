"""What a deployer would set: the runners of a plan's race."""

from dataclasses import dataclass

from serving.analysis.plan.plan_options import Option, unit_words
from serving.traffic.engine_limits import BatchLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a deployer would set; `limits` None: those of the question's schedulers."""

    option: Option
    policy: str
    replicas: int
    limits: BatchLimits | None = None

    @property
    def chips(self) -> int:
        """In service."""
        return self.replicas * self.option.replica_chips

    @property
    def kind(self) -> tuple[object, ...]:
        """What each replica is; the option also has what the steady state says of its share."""
        option = self.option
        return option.candidate, option.point.prefill, self.policy, self.limits

    @property
    def words(self) -> str:
        """As `3 x 29 chips (tp 1, ep 29, lnc 2), capped:128`."""
        unit = unit_words(self.option.candidate, self.option.point.prefill)
        policy = "" if self.option.is_pooled else f", {self.policy}"
        limits = "" if self.limits is None else f", {self.limits.words}"
        return f"{self.replicas:,} x {unit}{policy}{limits}"
