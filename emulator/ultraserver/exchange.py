"""The exchange of tokens between chips and experts, in batches through one hub. Pure.

`Dispatch` of every chip in, one `RunExperts` per chip out; `ExpertRows` in, one `Combine` per chip
out. Pairs of 144 chips would be 20,000 messages a layer; with the hub it is four per chip.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.chip.commands import Combine, RunExperts
from emulator.chip.effects import Dispatch, ExpertRows
from emulator.specs.placement import EMPTY, ExpertPlacement


class ExpertMap:
    """The slot to which each chip sends the tokens of each expert.

    `place`, int64[places, chips, experts]: chip * slots + slot, or EMPTY, of the model's own
    `layers`, and of a layer that drafts after them. A chip uses its own copy of an expert, else one
    of its group's, over which the group's chips are spread evenly.
    """

    def __init__(self, placement: ExpertPlacement, *, drafts: bool = False) -> None:
        """With `drafts`, the layer after the last is one that drafts: placed as the last is."""
        self.layers = placement.layers
        self.chips = placement.chips
        self.slots = placement.slots
        self.ep = placement.ep
        self.place = np.full((placement.layers, self.chips, placement.experts), EMPTY, np.int64)
        for layer in range(placement.layers):
            for first in range(0, self.chips, placement.ep):
                self._fill(placement, layer, np.arange(first, first + placement.ep))
        if drafts:
            self.place = np.concatenate([self.place, self.place[-1:]])

    def _fill(self, placement: ExpertPlacement, layer: int, group: Int64s) -> None:
        held = placement.expert_of_slot[layer, group]  # [chips of the group, slots]
        filled = np.flatnonzero(held != EMPTY)
        expert = held.ravel()[filled]
        place = group[0] * self.slots + filled
        by_expert = np.argsort(expert, kind="stable")
        copies = np.bincount(expert, minlength=placement.experts)  # [experts]
        first_copy = np.cumsum(copies) - copies
        all_experts = np.arange(placement.experts)
        turn = (np.arange(len(group))[:, None] + all_experts) % np.maximum(copies, 1)
        if len(filled):
            index = np.minimum(first_copy + turn, len(filled) - 1)
            spread = np.where(copies > 0, place[by_expert][index], EMPTY)  # [chips, experts]
            self.place[layer, group] = spread
        self.place[layer, place // self.slots, expert] = place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerExchange:
    """One layer's exchange: work by chip, the way back, and counts.

    Attributes:
        work: by chip with at least one pair.
        order: [pairs] index of each pair, in chip and slot order, into tokens x k.
        tokens_of_source: tokens of each dispatching chip, in order.
        expert_pairs: [groups, experts] tokens of each group that chose each expert.
        pairs: [chips] pairs sent to each chip.
        distinct: [chips] slots of each chip with at least one pair.
        sent: [chips, chips] tokens from chip to chip, once for any number of experts.
    """

    layer: int
    work: dict[int, RunExperts]
    order: Int64s
    tokens_of_source: dict[int, int]
    expert_pairs: Int64s
    pairs: Int64s
    distinct: Int64s
    sent: Int64s


def plan_exchange(dispatches: Mapping[int, Dispatch], experts: ExpertMap) -> LayerExchange:
    """Sort every (token, expert) pair of a layer by chip and slot, then by source and token."""
    sources = sorted(dispatches)
    layer = dispatches[sources[0]].layer
    lengths = [len(dispatches[source].hidden) for source in sources]
    source_of_token = np.repeat(sources, lengths)  # [tokens]
    hidden = np.concatenate([dispatches[source].hidden for source in sources])  # [tokens, hidden]
    chosen = np.concatenate([dispatches[source].chosen for source in sources])  # [tokens, k]
    place = experts.place[layer, source_of_token[:, None], chosen].ravel()  # [tokens * k]
    assert place.min() != EMPTY, "tokens for an expert that no chip holds"
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place, minlength=experts.chips * experts.slots)
    counts = counts.reshape(experts.chips, experts.slots)
    pairs = counts.sum(axis=1)
    # Each chip gets a token once: its rows are the distinct (chip, token) in order.
    tokens, chip_of_pair = len(hidden), np.repeat(np.arange(experts.chips), pairs)
    keys, row = np.unique(chip_of_pair * tokens + order // chosen.shape[1], return_inverse=True)
    rows_of_chip = np.bincount(keys // tokens, minlength=experts.chips)
    token_of_row = keys % tokens
    sent = np.bincount(
        source_of_token[token_of_row] * experts.chips + keys // tokens,
        minlength=experts.chips * experts.chips,
    )
    all_experts = experts.place.shape[2]
    chosen_in_group = source_of_token[:, None] // experts.ep * all_experts + chosen
    groups = experts.chips // experts.ep
    return LayerExchange(
        layer=layer,
        work=_work(layer, hidden[token_of_row], rows_of_chip, row, counts),
        order=order,
        tokens_of_source=dict(zip(sources, lengths, strict=True)),
        expert_pairs=np.bincount(chosen_in_group.ravel(), minlength=groups * all_experts).reshape(
            groups, all_experts
        ),
        pairs=pairs,
        distinct=np.count_nonzero(counts, axis=1),
        sent=sent.reshape(experts.chips, experts.chips),
    )


def _work(
    layer: int, rows: Float32s, rows_of_chip: Int64s, row: Int64s, counts: Int64s
) -> dict[int, RunExperts]:
    """Cut `rows` and `row` (of each pair), both in chip order, into each chip's share."""
    row_ends, pair_ends = np.cumsum(rows_of_chip).tolist(), np.cumsum(counts.sum(axis=1)).tolist()
    work = {}
    first_row = first_pair = 0
    for chip, (row_end, pair_end) in enumerate(zip(row_ends, pair_ends, strict=True)):
        if pair_end > first_pair:
            work[chip] = RunExperts(
                layer=layer,
                rows=rows[first_row:row_end],
                row_of_pair=row[first_pair:pair_end] - first_row,
                counts=counts[chip],
            )
        first_row, first_pair = row_end, pair_end
    return work


def finish_exchange(
    exchange: LayerExchange, answers: Mapping[int, ExpertRows], tp: int = 1
) -> dict[int, Combine]:
    """Return the experts' outputs [tokens, k, hidden] to every chip that dispatched.

    Each such chip of rank [r * tp, (r + 1) * tp) gets those of all its rank's tokens, in order.
    """
    sorted_rows = np.concatenate([answers[chip].rows for chip in sorted(exchange.work)])
    rows = np.empty_like(sorted_rows)  # [pairs, hidden]
    rows[exchange.order] = sorted_rows
    tokens = sum(exchange.tokens_of_source.values())
    by_token = rows.reshape(tokens, -1, rows.shape[1])  # [tokens, k, hidden]
    combines: dict[int, Combine] = {}
    start = 0
    for _, of_rank in groupby(exchange.tokens_of_source, key=lambda source: source // tp):
        sources = list(of_rank)
        count = sum(exchange.tokens_of_source[source] for source in sources)
        combine = Combine(layer=exchange.layer, expert_rows=by_token[start : start + count])
        combines.update(dict.fromkeys(sources, combine))
        start += count
    return combines
