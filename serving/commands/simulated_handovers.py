"""Options of `ultraserve simulate`: a policy of day and night."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.analysis_options import check_least
from serving.commands.day import SLO
from serving.commands.day_night_arguments import (
    NEEDS,
    HandoverOptions,
    check_group_chips,
    duration_of,
    lend_groups,
    policy_of,
    with_group_rate,
    with_training_groups,
    zone_of,
)
from serving.commands.leases import GRACE_S
from serving.traffic.engine_limits import HBM_SHARE
from serving.traffic.slo import parse_slo
from serving.traffic.start_time import START_S
from startup.typed_options import option

if TYPE_CHECKING:
    from loadgen.workloads.traffic import Traffic
    from serving.simulator import SimulatedDeployment
    from serving.simulator.day_night import SimulatedDayNight

_MIDNIGHT: Final = "00:00"


@dataclass(frozen=True, kw_only=True)
class SimulatedHandoverOptions(HandoverOptions):
    """The policy and the job; those of a server, with a clock and a job that are simulated."""

    GROUP = HandoverOptions.GROUP

    day_start: str | None = option(
        None,
        f"the time of day at the start, of a Monday (default: {_MIDNIGHT})",
        metavar="HH:MM[@ZONE]",
    )
    group_chips: int | None = option(
        None,
        "chips that change hands together, whole ranks whose HBM holds a training state (default: "
        "the fewest that do); of several --replicas all chips of one",
    )
    group_requests_per_s: float | None = option(
        None,
        "requests that a group serves in a second within --slo (default: from the cost model, of "
        "requests of the traffic's mean lengths)",
        "--group-requests-per-s",
        metavar="R",
    )
    start_seconds: float | None = option(
        None,
        "until a job's processes run and its models are loaded, weights left out; assumed "
        "(default: 30)",
        metavar="SECONDS",
    )

    def __post_init__(self) -> None:
        check_least("lend_chips", self.lend_chips, 1)
        if policy_of(self) is not None:
            return
        for each in fields(SimulatedHandoverOptions):
            if getattr(self, each.name) is not None:
                raise ConfigError(each.name, getattr(self, each.name), NEEDS)

    def day_night_settings(
        self, deployment: SimulatedDeployment, traffic: Traffic, *, slo: str | None
    ) -> SimulatedDayNight | None:
        """How chips change hands, or None; raises ConfigError."""
        policy = policy_of(self)
        if policy is None:
            return None
        from serving.analysis.steady_state.request_shape import RequestShape
        from serving.simulator.day_night import SimulatedDayNight, check_groups
        from serving.simulator.simulated_machine import machine_of

        if self.day_start == "now":
            expected = "HH:MM, as a simulation has no clock on the wall"
            raise ConfigError("day_start", self.day_start, expected)
        partition, engines = deployment.cost_model.partition, deployment.replicas.count
        chips = partition.chips * engines
        check_group_chips(self.group_chips, partition.tp)
        group_chips = self.group_chips or (partition.tp if engines == 1 else partition.chips)
        settings = SimulatedDayNight(
            policy=policy,
            day_length_s=duration_of(self, "day_length", 86_400.0),
            day_start=self.day_start or _MIDNIGHT,
            zone=zone_of(policy),
            chips=chips,
            group_chips=group_chips,
            lend_groups=lend_groups(self.lend_chips, chips, group_chips),
            grace_s=duration_of(self, "drain_grace", GRACE_S),
            slo=parse_slo(slo or SLO),
            group_requests_per_s=self.group_requests_per_s,
            group_requests_source="" if self.group_requests_per_s is None else "as it was said",
            reading_s=0.0,
            start_s=START_S if self.start_seconds is None else self.start_seconds,
        )
        check_groups(settings, deployment)
        machine = machine_of(deployment.cost_model)
        if engines == 1:
            settings = with_training_groups(settings, self, machine)
        means = (traffic.prompt_tokens, traffic.output_tokens)
        prompt, output = (max(1, round(float(each.mean()))) if len(each) else 1 for each in means)
        return with_group_rate(
            settings,
            machine,
            RequestShape(prompt_tokens=prompt, output_tokens=output),
            seats=deployment.limits.max_num_seqs,
            utilization=HBM_SHARE,
        )
