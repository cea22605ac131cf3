"""The subject of a simulation: a partition's cost model and its schedulers' limits."""

from dataclasses import dataclass
from typing import Final, Self

from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition, check_partition
from emulator.specs.shipped_fits import FITTED, calibration_for
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from serving.traffic.engine_limits import EngineLimits

BLOCK_TOKENS: Final = 16
"""vLLM's default block."""
HBM_SHARE: Final = 0.92
"""vLLM's default --gpu-memory-utilization, as `ultraserve serve` has it."""
ROUTING_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """vLLM's bounds of a rank under vLLM's names, with the defaults of `ultraserve profile`.

    `prefill_policy` None is the default one.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8_192
    block_tokens: int = BLOCK_TOKENS
    max_model_len: int | None = None
    prefill_policy: str | None = None

    def with_kv(self, capacity_tokens: int) -> EngineLimits:
        """The limits with KV blocks for this many tokens.

        A rank gets two blocks at least, vLLM's minimum. Raises ConfigError for what `EngineLimits`
        refuses.
        """
        return EngineLimits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            kv_blocks_per_rank=max(2, capacity_tokens // self.block_tokens),
            block_tokens=self.block_tokens,
            max_model_len=self.max_model_len,
            prefill_policy=self.prefill_policy,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedDeployment:
    """A cost model (machine, model, partition, calibration, overlap) and its ranks' limits."""

    cost_model: StepCostModel
    limits: EngineLimits

    @classmethod
    def of(
        cls,
        system: str,
        model: str,
        partition: Partition,
        *,
        calibration: str = FITTED,
        overlap: str = Overlap.NONE,
        routing: str = "uniform",
        schedulers: SchedulerLimits | None = None,
    ) -> Self:
        """Make one from catalog names; other words and defaults are those of `ultraserve serve`.

        Raises ConfigError for an unknown name, or a partition that the machine does not allow.
        """
        machine, timed = system_by_name(system), model_by_name(model)
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
        )

    @property
    def idle_watts(self) -> float:
        """Of all chips of the partition together."""
        return self.cost_model.idle_chip_watts * self.cost_model.partition.chips
