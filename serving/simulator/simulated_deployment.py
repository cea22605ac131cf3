"""The subject of a simulation: a partition's cost model and its schedulers' limits."""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.kv_transfer import prompt_kv_bytes, prompt_transfer_ns
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.power.system_power import SystemPower
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition, check_partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.shipped_fits import FITTED, calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.workloads.traffic import Traffic
from serving.policy.rank_roles import check_prefill_ranks
from serving.simulator.own_choices import NO_CHOICES, OwnChoices
from serving.simulator.routers import ONE_ENGINE, ReplicaSet
from serving.traffic.engine_limits import HBM_SHARE, EngineLimits, SchedulerLimits

ROUTING_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedDeployment:
    """A cost model (machine, model, partition, calibration, overlap) and its ranks' limits.

    `prefill_ranks`: of each engine, the first ones that compute prompts alone, with the first
    token, and send their keys and values to the others; 0: all do both; `auto`: by the load.
    `prefill`: other chips that compute the prompts, with replicas of their own, and send these over
    the fabric; None where each engine computes its own. Raises ConfigError for another model there,
    a third pool, limits with other drafts than the cost model's, and no rank that decodes.
    """

    cost_model: StepCostModel
    limits: EngineLimits
    replicas: ReplicaSet = ONE_ENGINE
    prefill: "SimulatedDeployment | None" = None
    choices: OwnChoices = NO_CHOICES
    prefill_ranks: int | str = 0

    def __post_init__(self) -> None:
        drafts = self.cost_model.draft_tokens
        if self.limits.speculative_tokens != drafts:
            raise ConfigError(
                field="speculative_tokens",
                value=self.limits.speculative_tokens,
                expected=f"{drafts}, the draft_tokens of the cost model",
            )
        ranks = self.cost_model.partition.ranks
        check_prefill_ranks(self.prefill_ranks, ranks)
        if self.prefill_ranks and drafts:
            raise ConfigError("prefill_ranks", self.prefill_ranks, "0 with drafts")
        if self.prefill is None:
            return
        own, other = self.cost_model.model.name, self.prefill.cost_model.model.name
        if other != own:
            raise ConfigError(field="prefill", value=other, expected=f"the same model, {own}")
        if self.prefill.prefill is not None:
            raise ConfigError(field="prefill", value="three pools", expected="two at most")

    @classmethod
    def of(  # noqa: PLR0913  a keyword for each thing in which deployments differ
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
        choices: OwnChoices = NO_CHOICES,
        placement: ExpertPlacement | None = None,
        prefill_ranks: int | str = 0,
    ) -> Self:
        """From catalog names; other words and defaults are those of `ultraserve serve`.

        `placement`: of the experts on the chips; None spreads them evenly.

        Raises ConfigError for an unknown name, or a partition that the machine does not allow.
        """
        machine = system_by_name(system) if isinstance(system, str) else system
        timed = model_by_name(model)
        check_partition(partition, machine, {timed.name: (timed.heads, timed.heads)})
        terms = HbmTerms(utilization=HBM_SHARE)
        schedulers = schedulers or SchedulerLimits()
        drafter = schedulers.drafter(timed)
        room = kv_capacity_tokens(
            timed,
            machine,
            partition,
            terms=terms,
            drafts_by_layer=schedulers.drafts_by_layer,
            drafter=drafter,
        )
        limits = schedulers.with_kv(room)
        return cls(
            cost_model=StepCostModel(
                machine,
                timed,
                partition,
                placement=placement,
                distribution=ExpertDistribution.parse(routing, timed, seed=ROUTING_SEED),
                calibration=calibration_for(machine.chip.name, name=calibration),
                overlap=Overlap(overlap),
                draft_tokens=limits.speculative_tokens,
                draft_module=schedulers.drafts_by_layer,
                draft_model=drafter,
            ),
            limits=replace(limits, max_model_len=limits.max_model_len or timed.max_context_tokens),
            replicas=replicas,
            choices=choices,
            prefill_ranks=prefill_ranks,
        )

    @property
    def pools(self) -> "tuple[SimulatedDeployment, ...]":
        """This one, and the one that prefills for it."""
        return (self,) if self.prefill is None else (self, self.prefill)

    def parts_of(self, traffic: Traffic) -> "list[tuple[SimulatedDeployment, Traffic]]":
        """Each pool with its part: prefill computes prompts, and a token that goes nowhere."""
        parts = [(self, traffic)]
        if self.prefill is not None:
            prompts = replace(traffic, output_tokens=np.ones_like(traffic.output_tokens))
            parts.append((self.prefill, prompts))
        return parts

    @property
    def chips(self) -> int:
        """Of all replicas and pools."""
        return sum(each.cost_model.partition.chips * each.replicas.count for each in self.pools)

    @property
    def engines(self) -> int:
        """Of all pools; those of this one have the first numbers."""
        return len(self.partitions)

    @property
    def partitions(self) -> list[Partition]:
        """Of each engine, by its number."""
        return [
            each.cost_model.partition for each in self.pools for _ in range(each.replicas.count)
        ]

    @property
    def all_idle_watts(self) -> float:
        """Of all chips."""
        return sum(each.idle_watts * each.replicas.count for each in self.pools)

    def facility_watts(self, chip_watts: float) -> float:
        """At the utility's meter, cooling included, when all chips together draw `chip_watts`."""
        power = SystemPower(self.cost_model.system)
        # They may be more than a machine has: a part of them stands for all.
        chips = min(self.chips, power.system.chips.count)
        part = chips / self.chips
        return power.facility_watts(chip_watts * part, chips=chips).total_watts / part

    @property
    def provisioned_watts(self) -> float:
        """The chips' share of the racks' budgets, before cooling."""
        return sum(each.cost_model.provisioned_watts * each.replicas.count for each in self.pools)

    @property
    def kv_blocks(self) -> int:
        """Of all ranks, without the one of each that is vLLM's own."""
        return sum(
            (each.limits.kv_blocks_per_rank - 1)
            * each.cost_model.partition.ranks
            * each.replicas.count
            for each in self.pools
        )

    def transfer_ns(self, prompt_tokens: Int64s) -> Float64s:
        """From asking for each prompt's keys and values until they are there, [requests].

        On idle links, as `prompt_transfer_ns` assumes; raises ConfigError where pools do not fit.
        """
        assert self.prefill is not None, "each engine computes its own prompts"
        model, system = self.cost_model.model, self.cost_model.system
        if not len(prompt_tokens):
            return np.zeros(0)
        ends = np.array([prompt_tokens.min(), prompt_tokens.max()])
        ends_ns = [
            prompt_transfer_ns(
                system,
                model,
                prompt_tokens=tokens,
                from_chips=self.prefill.cost_model.partition.tp,
                to_chips=self.cost_model.partition.tp,
            )
            for tokens in ends.tolist()
        ]
        # It grows with the bytes, beside a latency.
        sizes, known = (prompt_kv_bytes(model, each) for each in (prompt_tokens, ends))
        transfer_ns: Float64s = np.interp(sizes, known, ends_ns)
        return transfer_ns

    @property
    def idle_watts(self) -> float:
        """Of all chips of one replica together, spares too."""
        partition = self.cost_model.partition
        return self.cost_model.idle_chip_watts * (partition.chips + partition.spares)
