"""Expected load of the busiest chip, which a layer waits for.

Expected loads are means, equal for all chips; real stacks need the maximum (`expert_maxima`).
"""

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.timing.expert_maxima import expert_maxima
from emulator.timing.routing import ExpectedRouting
from emulator.timing.speculation import verified
from emulator.ultraserver.rank_phase import sums_experts_in_rank
from emulator.ultraserver.step_cost import StepCostModel


class PeakExpertLoad:
    """Loads of one cost model's steps; ConfigError without routed experts or with unequal odds.

    `exponent`: how unevenly experts are liked, in another order in each layer; see `expert_maxima`.
    Tokens sent stay those of even picks.
    """

    def __init__(self, costs: StepCostModel, *, exponent: float = 0.0) -> None:
        model, partition = costs.model, costs.partition
        if not model.experts:
            raise ConfigError("model", model.name, "one with routed experts")
        if np.ptp(costs.layout.distribution.odds) > 0:
            raise ConfigError("routing", costs.layout.distribution.name, "uniform for maxima")
        self._costs = costs
        self._maxima = expert_maxima(
            blocks=partition.ep,
            experts=model.experts,
            experts_per_token=model.experts_per_token,
            exponent=exponent,
        )
        routing = ExpectedRouting(costs.layout.distribution, costs.layout.placement)
        needed = np.repeat(routing.chance_needed[0], partition.expert_tp)  # [chips]
        group = np.arange(partition.chips) // partition.expert_group
        self._reached = needed * (group[:, None] == group)  # [sender, receiver]
        if sums_experts_in_rank(partition):
            self._reached = np.zeros_like(self._reached)

    def loads(self, batch: StepBatch) -> ExpertLoads:
        """The busiest chip's expected load for every chip of a group; all layers alike.

        Draft tokens count. Sent tokens are expected values, since an exchange sums over many chips.
        """
        partition, layers = self._costs.partition, self._costs.model.moe_layers
        by_rank = verified(batch, self._costs.draft_tokens).tokens_by_rank()
        tokens = np.repeat(by_rank / partition.tp, partition.tp)  # [chips]
        groups = tokens.reshape(-1, partition.expert_group).sum(axis=1)
        most = np.array([self._maxima.of(float(each)) for each in groups.tolist()])  # [groups, 2]
        distinct, pairs = np.repeat(most, partition.expert_group, axis=0).T  # [chips] each
        shape = (layers, partition.chips)
        return ExpertLoads(
            pairs=np.broadcast_to(pairs, shape),
            distinct=np.broadcast_to(distinct, shape),
            sent=np.broadcast_to(tokens[:, None] * self._reached, (*shape, partition.chips)),
        )
