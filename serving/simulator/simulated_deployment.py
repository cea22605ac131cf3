"""The subject of a simulation: a partition's cost model and its schedulers' limits."""

from dataclasses import dataclass
from typing import Final, Self

from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition, check_partition
from emulator.specs.shipped_fits import FITTED, calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from serving.simulator.routers import ONE_ENGINE, ReplicaSet
from serving.traffic.engine_limits import EngineLimits, SchedulerLimits

HBM_SHARE: Final = 0.92
"""vLLM's default --gpu-memory-utilization, as `ultraserve serve` has it."""
ROUTING_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedDeployment:
    """A cost model (machine, model, partition, calibration, overlap) and its ranks' limits."""

    cost_model: StepCostModel
    limits: EngineLimits
    replicas: ReplicaSet = ONE_ENGINE

    @classmethod
    def of(
        cls,
        system: str | SystemSpec,
        model: str,
        partition: Partition,
        *,
        calibration: str = FITTED,
        overlap: str = Overlap.NONE,
        routing: str = "uniform",
        schedulers: SchedulerLimits | None = None,
        replicas: ReplicaSet = ONE_ENGINE,
    ) -> Self:
        """From catalog names; other words and defaults are those of `ultraserve serve`.

        Raises ConfigError for an unknown name, or a partition that the machine does not allow.
        """
        machine = system_by_name(system) if isinstance(system, str) else system
        timed = model_by_name(model)
        check_partition(partition, machine, {timed.name: (timed.heads, timed.heads)})
        terms = HbmTerms(utilization=HBM_SHARE)
        return cls(
            cost_model=StepCostModel(
                machine,
                timed,
                partition,
                distribution=ExpertDistribution.parse(routing, timed, seed=ROUTING_SEED),
                calibration=calibration_for(machine.chip.name, name=calibration),
                overlap=Overlap(overlap),
            ),
            limits=(schedulers or SchedulerLimits()).with_kv(
                kv_capacity_tokens(timed, machine, partition, terms=terms)
            ),
            replicas=replicas,
        )

    @property
    def idle_watts(self) -> float:
        """Of all chips of one replica together."""
        return self.cost_model.idle_chip_watts * self.cost_model.partition.chips
