"""The exchange of tokens between ranks and experts, in batches through one hub.

Pure: every rank's `Dispatch` of a layer in, one `RunExperts` per chip out; their `ExpertRows` in,
one `Combine` per rank out. All pairs of 144 chips would be 20,000 messages a layer; the hub makes
it four per chip. The emulated time of the exchange is the fabric's business, not this file's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.chip.commands import Combine, RunExperts
from emulator.chip.effects import Dispatch, ExpertRows

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMap:
    """Where experts live: `chip_of_expert` and `slot_of_expert` are [experts] int64."""

    chip_of_expert: I64
    slot_of_expert: I64
    experts_per_chip: int

    @classmethod
    def contiguous(cls, experts: int, chips: int) -> "ExpertMap":
        """Chip c holds experts [c * n, (c + 1) * n) with n = experts / chips."""
        assert experts % chips == 0, (experts, chips)
        per_chip = experts // chips
        ids = np.arange(experts, dtype=np.int64)
        return cls(
            chip_of_expert=ids // per_chip,
            slot_of_expert=ids % per_chip,
            experts_per_chip=per_chip,
        )

    def experts_of(self, chip: int) -> list[int]:
        """Global ids of the experts on `chip`, in slot order."""
        here = np.flatnonzero(self.chip_of_expert == chip)
        return [int(expert) for expert in here[np.argsort(self.slot_of_expert[here])]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One layer's exchange: what each chip is asked, and how the answers return.

    Attributes:
        work: by chip, for chips that have at least one pair.
        order: [pairs] index of each pair, in chip and slot order, into tokens x k.
        pairs_of_chip: [chips] pairs sent to each chip.
        tokens_of_rank: tokens of each rank, in rank order of the dispatches.
    """

    layer: int
    work: dict[int, RunExperts]
    order: I64
    pairs_of_chip: I64
    tokens_of_rank: dict[int, int]


def plan_exchange(dispatches: Mapping[int, Dispatch], experts: ExpertMap, chips: int) -> Exchange:
    """Sort every (token, expert) pair of all ranks by chip and slot.

    `dispatches` maps rank to its dispatch, all of the same layer. Ties keep the order of ranks
    and tokens.
    """
    ranks = sorted(dispatches)
    layer = dispatches[ranks[0]].layer
    hidden = np.concatenate([dispatches[rank].hidden for rank in ranks])  # [tokens, hidden]
    chosen = np.concatenate([dispatches[rank].chosen for rank in ranks])  # [tokens, k]
    per_chip = experts.experts_per_chip
    place = experts.chip_of_expert * per_chip + experts.slot_of_expert  # [experts]
    place_of_pair = place[chosen].ravel()
    order = np.argsort(place_of_pair, kind="stable")
    pairs_of_place = np.bincount(place_of_pair, minlength=chips * per_chip)
    counts = pairs_of_place.reshape(chips, per_chip)
    pairs_of_chip = counts.sum(axis=1)
    token_of_pair = order // chosen.shape[1]
    work = {}
    ends = np.cumsum(pairs_of_chip)
    for chip in np.flatnonzero(pairs_of_chip).tolist():
        pairs = token_of_pair[ends[chip] - pairs_of_chip[chip] : ends[chip]]
        tokens, row_of_pair = np.unique(pairs, return_inverse=True)
        work[chip] = RunExperts(
            layer=layer, rows=hidden[tokens], row_of_pair=row_of_pair, counts=counts[chip]
        )
    return Exchange(
        layer=layer,
        work=work,
        order=order,
        pairs_of_chip=pairs_of_chip,
        tokens_of_rank={rank: len(dispatches[rank].hidden) for rank in ranks},
    )


def finish_exchange(exchange: Exchange, answers: Mapping[int, ExpertRows]) -> dict[int, Combine]:
    """Give every rank its experts' outputs, [tokens, k, hidden], in the order it dispatched."""
    chips = np.flatnonzero(exchange.pairs_of_chip).tolist()
    sorted_rows = np.concatenate([answers[chip].rows for chip in chips])  # [pairs, hidden]
    rows = np.empty_like(sorted_rows)
    rows[exchange.order] = sorted_rows
    tokens = sum(exchange.tokens_of_rank.values())
    by_token = rows.reshape(tokens, -1, rows.shape[1])  # [tokens, k, hidden]
    combines = {}
    start = 0
    for rank, count in exchange.tokens_of_rank.items():
        combines[rank] = Combine(layer=exchange.layer, expert_rows=by_token[start : start + count])
        start += count
    return combines
