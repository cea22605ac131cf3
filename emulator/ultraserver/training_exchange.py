"""One layer's exchange of a training micro-batch: tokens to experts and back, gradients likewise.

Pure. Pairs go as in `exchange.plan_exchange`, but a token's row goes once to each chip with some of
its experts, and returns as one weighted sum. A token's sums are added in chip order.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.chip.effects import Dispatch
from emulator.chip.training_commands import (
    CombineGradients,
    CombineSums,
    TrainExperts,
    TrainExpertsBackward,
)
from emulator.chip.training_effects import (
    ExpertGradients,
    ExpertSums,
    GradientDispatch,
    TrainingDispatch,
)
from emulator.compute.training_loss import expert_share
from emulator.ultraserver.exchange import ExpertMap, plan_exchange


class TrainingExchange:
    """The exchange begun by chips' `dispatches` of one layer.

    `work`: by chip with at least one pair; `tokens`: of all chips; `expert_share`, [experts]
    float32: each expert's pairs over tokens, summing to k.
    """

    def __init__(self, dispatches: Mapping[int, TrainingDispatch], experts: ExpertMap) -> None:
        plan = plan_exchange(
            {
                chip: Dispatch(layer=each.layer, hidden=each.hidden, chosen=each.chosen)
                for chip, each in dispatches.items()
            },
            experts,
        )
        self.layer = plan.layer
        self._order = plan.order  # [pairs] of tokens x k
        self._tokens_of_source = plan.tokens_of_source
        self.tokens = sum(plan.tokens_of_source.values())
        self._k = len(plan.order) // self.tokens
        weights = np.concatenate([dispatches[chip].weights for chip in sorted(dispatches)]).ravel()
        ends = np.cumsum(plan.pairs)
        self._token_of_row: dict[int, Int64s] = {}  # by chip with work
        self.work: dict[int, TrainExperts] = {}
        for chip, asked in sorted(plan.work.items()):
            pairs = plan.order[ends[chip] - plan.pairs[chip] : ends[chip]]
            token_of_row = np.empty(len(asked.rows), np.int64)
            token_of_row[asked.row_of_pair] = pairs // self._k
            self._token_of_row[chip] = token_of_row
            self.work[chip] = TrainExperts(
                layer=plan.layer,
                rows=asked.rows,
                row_of_pair=asked.row_of_pair,
                counts=asked.counts,
                weights=weights[pairs],
            )
        self.expert_share: Float32s = expert_share(plan.expert_pairs.sum(axis=0), self.tokens)

    def combine(self, answers: Mapping[int, ExpertSums]) -> dict[int, CombineSums]:
        """Give every chip the sums of its tokens, [tokens, hidden]."""
        summed = self._summed({chip: answers[chip].rows for chip in self.work})
        return {
            chip: CombineSums(layer=self.layer, rows=rows)
            for chip, rows in self._by_source(summed).items()
        }

    def backward(
        self, dispatches: Mapping[int, GradientDispatch]
    ) -> dict[int, TrainExpertsBackward]:
        """Send each token's gradient to the chips that got its row."""
        gradients = np.concatenate([dispatches[chip].rows for chip in self._tokens_of_source])
        return {
            chip: TrainExpertsBackward(layer=self.layer, rows=gradients[tokens])
            for chip, tokens in self._token_of_row.items()
        }

    def combine_gradients(
        self, answers: Mapping[int, ExpertGradients], *, balance_scale: float
    ) -> dict[int, CombineGradients]:
        """Give every chip the gradients by its tokens' rows and weights."""
        summed = self._summed({chip: answers[chip].rows for chip in self.work})
        of_pairs = np.concatenate([answers[chip].weights for chip in self.work])
        weights = np.empty_like(of_pairs)
        weights[self._order] = of_pairs
        rows, by_weight = self._by_source(summed), self._by_source(weights.reshape(-1, self._k))
        return {
            chip: CombineGradients(
                layer=self.layer,
                rows=rows[chip],
                weights=by_weight[chip],
                expert_share=self.expert_share,
                balance_scale=balance_scale,
            )
            for chip in rows
        }

    def _summed(self, rows_of: Mapping[int, Float32s]) -> Float32s:
        """Add the chips' rows [rows, hidden] of each token: [tokens, hidden]."""
        width = next(iter(rows_of.values())).shape[1]
        total = np.zeros((self.tokens, width), np.float32)
        for chip, rows in rows_of.items():  # ascending; a token has one row of each chip
            total[self._token_of_row[chip]] += rows
        return total

    def _by_source(self, rows: Float32s) -> dict[int, Float32s]:
        """Cut rows in the order of tokens into each dispatching chip's share."""
        ends = np.cumsum(list(self._tokens_of_source.values())).tolist()
        return dict(zip(self._tokens_of_source, np.split(rows, ends[:-1]), strict=True))


def summed_in_order(parts: Sequence[Float32s]) -> Float32s:
    """The chips' gradients, added from the first to the last for the same bits every time."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
