"""The tables that a step is counted from: built when the model, placement or machine changes.

Whatever a rank's rows take is asked of `RankPhases`, and what a chip's experts take of
`ExpertPhaseModel`, once: by tokens, by rows of logits, and for one of each sum over requests.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.tier_paths import TierPaths
from emulator.specs.matrix_engine import MatrixEngine
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.matrix_time import contraction_rows, output_columns
from emulator.timing.rank_totals import RankTotals
from emulator.timing.routing import ExpectedRouting
from emulator.ultraserver import count_kernel as kernel
from emulator.ultraserver import request_kernel
from emulator.ultraserver.exchange_kernel import ExchangeTables
from emulator.ultraserver.expert_phase import ExpertPhaseModel
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.rank_phase import RankPhases
from emulator.ultraserver.terms_layout import (
    CORE_MOVING_NS,
    CORE_NS,
    DMA_NS,
    ENGINE_COUNT,
    FIELDS,
    FILL_DRAIN_NS,
    FLOPS,
    HBM_BYTES,
    LAUNCH_NS,
    RATES,
    TENSOR_NS,
    side_by_side,
)
from emulator.ultraserver.token_exchange import TokenExchange


def head_tables(model: ModelSpec, shape: IssueShape) -> request_kernel.HeadTables:
    """The constants of `rank_totals`."""
    engine, latent, decodes = shape.engine, model.latent, shape.decodes
    columns, rows = engine.tile_columns.count, engine.tile_rows.count
    least = engine.moving_rows_min.value

    def macs(group: int, contracted: int, made: int, window: int = 0, apart: int = 1) -> Float64s:
        score = float(contraction_rows(engine, np.array(float(contracted))))
        value = float(output_columns(engine, np.array(float(made))))
        tiles = [apart * columns * score, apart * rows * value]  # keys on cores take a tile of each
        return np.array([*tiles, least / group, window, 0.0, 0.0])

    def decoded(contracted: int, made: int, window: int = 0) -> Float64s:
        return macs(decodes.group, contracted, made, window, decodes.by_keys)

    def tiles(apart: int) -> list[int]:
        spans = [columns * apart, rows * apart]
        return spans + [(1 << request_kernel.SHIFT) // span + 1 for span in spans]

    group, width = shape.prompts.group, model.head_dim
    plain = unfolded = macs(group, width, width)
    of_decodes = decoded(width, width)
    pair_macs, unfolded_pair_macs = 2 * width, 0
    if latent is not None:
        plain = macs(group, latent.cached_width, latent.kv_rank)
        of_decodes = decoded(latent.cached_width, latent.kv_rank)
        unfolded = macs(1, latent.query_width_per_head, latent.value_dim)
        pair_macs = latent.folded_macs_per_score
        unfolded_pair_macs = latent.unfolded_macs_per_score
    up_macs = layer_weights(model).kv_up_macs / model.heads
    by_head = (pair_macs, unfolded_pair_macs, 2 * width, up_macs, shape.kv_up_macs, least)
    window = model.window_tokens
    by_batch = decodes.by_batch if decodes.is_apart else 0
    return request_kernel.HeadTables(
        numbers=np.array(
            [*tiles(1), *tiles(decodes.by_keys), _decodes_from(model), window, by_batch]
        ),
        macs=np.stack(
            [
                plain,
                unfolded,
                macs(group, width, width, window),
                np.array(by_head, dtype=np.float64),
                of_decodes,
                decoded(width, width, window),
            ]
        ),
    )


def _decodes_from(model: ModelSpec) -> int:
    """The shortest context over which one token decodes, and so it does over any longer one.

    At least 1: what has no context is a prompt. And a latent has to be folded, which it is over k
    keys where k x folded + up is at most k x (unfolded + up).
    """
    latent = model.latent
    if latent is None:
        return 1
    up_macs = layer_weights(model).kv_up_macs / model.heads
    spared = latent.unfolded_macs_per_score + up_macs - latent.folded_macs_per_score
    never = np.iinfo(np.int64).max
    return max(1, int(np.ceil(up_macs / spared))) if spared > 0 else never


_BLOCK: Final = 512


def blocks_around(counts: Int64s) -> Int64s:
    """All counts of the blocks that `counts` are in: the steps after one have others close by."""
    blocks = np.unique(counts // _BLOCK)
    around: Int64s = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    return around


class RankTableStore:
    """Terms of the rows of one rank of each kind, made when they are asked for.

    Those that are not known are anything.
    """

    def __init__(self, phases: RankPhases, kinds: int) -> None:
        self._phases = phases
        self._kinds = kinds
        self._rows = len(phases.rows)
        by_sum = self._by_sum()
        self.tables = kernel.KindTables(
            by_tokens=self._nothing(0),
            by_logits=self._nothing(0),
            known_tokens=np.zeros(0, dtype=np.bool_),
            known_logits=np.zeros(0, dtype=np.bool_),
            by_sum=by_sum,
            sums_of_rows=np.argwhere(by_sum.any(axis=2)),
        )

    def learn(self, tokens: Int64s, logit_rows: Int64s) -> None:
        """Make the terms of ranks with `tokens`, or none or a dummy; and with `logit_rows`."""
        tables = self.tables
        by_tokens, known_tokens, tokens = self._wider(
            tables.by_tokens, tables.known_tokens, np.append(tokens, [0, 1])
        )
        by_logits, known_logits, logits = self._wider(
            tables.by_logits, tables.known_logits, logit_rows
        )
        if not len(tokens) + len(logits):
            return
        terms = self._terms(
            tokens=np.concatenate([tokens, np.zeros_like(logits)]),
            logit_rows=np.concatenate([np.zeros_like(tokens), logits]),
        )
        by_tokens[:, tokens] = terms[:, : len(tokens)]
        by_logits[:, logits] = terms[:, len(tokens) :]
        known_tokens[tokens] = known_logits[logits] = True  # last: other threads look them up
        self.tables = tables._replace(
            by_tokens=by_tokens,
            known_tokens=known_tokens,
            by_logits=by_logits,
            known_logits=known_logits,
        )

    def _wider(
        self, table: Float64s, known: Bools, counts: Int64s
    ) -> tuple[Float64s, Bools, Int64s]:
        """`table` [kinds, counts, rows, FIELDS] with room, what it knows, and those of `counts`
        that it does not know yet.
        """
        counts = np.unique(counts)
        if counts[-1] >= len(known):
            wider = max(_BLOCK, 1 << int(counts[-1]).bit_length())
            grown = self._nothing(wider)
            grown[:, : len(known)][:, known] = table[:, known]
            table, known = grown, np.append(known, np.zeros(wider - len(known), dtype=np.bool_))
        return table, known, counts[~known[counts]]

    def _nothing(self, counts: int) -> Float64s:
        return np.empty((self._kinds, counts, self._rows, FIELDS))

    def _by_sum(self) -> Float64s:
        """What one of each sum over a rank's requests takes: [rows, SUMS, FIELDS]."""
        one = np.eye(len(request_kernel.SUMS))
        terms = self._terms(**dict(zip(request_kernel.SUMS, one, strict=True)))
        return np.ascontiguousarray(terms[0].swapaxes(0, 1))

    def _terms(self, **totals: Float64s | Int64s) -> Float64s:
        """Of ranks with these totals, each [ranks], and no others: [kinds, ranks, rows, FIELDS]."""
        ranks = len(next(iter(totals.values())))
        # A kind's ranks are columns in turn.
        nothing = np.zeros(ranks * self._kinds)
        given = {
            name: np.repeat(each.astype(np.float64), self._kinds) for name, each in totals.items()
        }
        values = dict.fromkeys(RankTotals.__dataclass_fields__, nothing) | given
        terms = side_by_side(self._phases.terms(RankTotals(**values)))
        return terms.reshape(ranks, self._kinds, self._rows, FIELDS).swapaxes(0, 1)


@lru_cache(maxsize=64)
def _store_of(phases: RankPhases, kinds: int) -> RankTableStore:
    """Machines with ranks of the same kinds share it: in a sweep, many differ in experts alone."""
    return RankTableStore(phases, kinds)


def rank_tables(
    phases: RankPhases, layout: MachineLayout, *, ranks_per_domain: int
) -> tuple[kernel.RankTables, RankTableStore]:
    """Tables of a machine's ranks, and the store that makes their terms."""
    only, kind_of_rank = phases.one_of_each_kind()
    store = _store_of(only, int(kind_of_rank.max()) + 1)
    tables = kernel.RankTables(
        kinds=store.tables,
        kind_of_rank=kind_of_rank,
        up=np.asarray(layout.chips_up.reshape(-1, layout.partition.tp).all(axis=1)),
        dummy=np.array([int(layout.model.moe_layers > 0), 0]),
        ranks_per_domain=ranks_per_domain,
        tp=layout.partition.tp,
        ramp=_ramp(layout.system.chip.matrix),
    )
    return tables, store


def _ramp(matrix: MatrixEngine) -> Float64s:
    """Share of the rate to begin with, its square, steepness, and work of a whole ramp; or zeros.

    See `clock_ramp`.
    """
    share, ramp_ns = matrix.ramp_share.value, matrix.ramp_ns.value
    if share >= 1 or ramp_ns == 0:
        return np.zeros(4)
    whole_loss_ns = (1 - share) * ramp_ns / 2
    return np.array([share, share**2, (1 - share) / ramp_ns, ramp_ns - whole_loss_ns])


def expert_tables(
    experts: ExpertPhaseModel | None, layout: MachineLayout
) -> tuple[kernel.ExpertTables, Int64s]:
    """Columns of equal slots, none for a model without routed experts; and each chip's column in
    each kind of layer, [kinds, chips].
    """
    chips, group = layout.partition.chips, layout.partition.expert_group
    if experts is None:
        return _no_experts(chips), np.zeros((0, chips), dtype=np.int64)
    columns, column_of = _columns(experts.routing, layout.partition.expert_tp, group)
    tables = columns._replace(
        by_part=_by_part(experts),
        least_rows=float(layout.system.chip.matrix.moving_rows_min.value),
        pairs_in_sbuf=experts.pairs_in_sbuf,
    )
    return tables, column_of


@lru_cache(maxsize=1)
def _columns(
    routing: ExpectedRouting, expert_tp: int, group: int
) -> tuple[kernel.ExpertTables, Int64s]:
    """What `expert_tables` has from the routing over groups of so many chips."""
    pairs = np.repeat(routing.pairs_per_token, expert_tp, axis=1)  # [kinds, chips]
    slots = np.repeat(routing.slot_chance, expert_tp, axis=1)  # [kinds, chips, slots]
    groups = np.broadcast_to(np.arange(pairs.shape[1]) // group, pairs.shape)
    each = np.concatenate([groups[..., None], pairs[..., None], slots], axis=2)
    columns, column_of = np.unique(each.reshape(-1, each.shape[2]), axis=0, return_inverse=True)
    chances, chance_of_slot = np.unique(columns[:, 2:], return_inverse=True)
    tables = _no_experts(group)._replace(
        group_of=columns[:, 0].astype(np.int64),
        pairs_per_token=np.ascontiguousarray(columns[:, 1]),
        chance_of_slot=chance_of_slot.reshape(len(columns), -1),
        chances=chances,
    )
    return tables, column_of.reshape(pairs.shape)


def _no_experts(group: int) -> kernel.ExpertTables:
    return kernel.ExpertTables(
        group_of=np.zeros(0, dtype=np.int64),
        pairs_per_token=np.zeros(0),
        chance_of_slot=np.zeros((0, 0), dtype=np.int64),
        chances=np.zeros(0),
        by_part=np.zeros((kernel.PARTS_OF_EXPERTS, FIELDS)),
        least_rows=0.0,
        pairs_in_sbuf=0.0,
        group_chips=group,
    )


def _by_part(experts: ExpertPhaseModel) -> Float64s:
    """What each of a chip's parts takes, [PARTS_OF_EXPERTS, FIELDS].

    The matrix engine is taken by rows issued; a transfer's start and what is done once are taken by
    any pair at all.
    """
    pairs_in_sbuf = experts.pairs_in_sbuf
    pairs, distinct = np.array([[1.0, 0.0, 2 * pairs_in_sbuf], [0.0, 1.0, 0.0]])
    pair, expert, twice = side_by_side(experts.unexchanged(pairs, distinct))[:, 0]
    by_part = np.zeros((kernel.PARTS_OF_EXPERTS, FIELDS))
    linear = [*range(1, ENGINE_COUNT), CORE_MOVING_NS, *range(FLOPS, FLOPS + RATES), HBM_BYTES]
    by_part[0, linear] = pair[linear]
    by_part[0, CORE_NS] = pair[CORE_MOVING_NS]
    by_part[1, linear] = expert[linear]
    by_part[2, TENSOR_NS] = pair[TENSOR_NS]
    by_part[3, [FILL_DRAIN_NS, LAUNCH_NS]] = pair[[FILL_DRAIN_NS, LAUNCH_NS]]
    by_part[3, CORE_NS] = pair[CORE_NS] - by_part[0, CORE_NS]
    spilled = [DMA_NS, HBM_BYTES]
    by_part[4, spilled] = twice[spilled] / pairs_in_sbuf - 2 * pair[spilled]
    return by_part


def exchange_tables(
    experts: ExpertPhaseModel | None, layout: MachineLayout
) -> ExchangeTables | None:
    """Lanes of the tiers, or links; None where chips forward rows, see `TokenExchange.lanes`."""
    if experts is None or not experts.exchanges:
        return nothing_carried(layout.partition)
    return _carried(experts.exchange)


@lru_cache(maxsize=1)
def _carried(exchange: TokenExchange) -> ExchangeTables | None:
    lanes, links = exchange.lanes(), exchange.links()
    if lanes is not None:
        return _over_lanes(exchange, lanes)
    return None if links is None else _over_links(exchange, *links)


def _over_links(exchange: TokenExchange, links: Float64s, ends: Int64s) -> ExchangeTables:
    """No tiers: `links` and `ends` as in the tables."""
    kinds, chips, _ = exchange.per_token.shape
    return _nothing(kinds, chips)._replace(
        carried=True,
        stuck=exchange.stuck(),
        left_bytes=_leaving(exchange.per_token),
        latency_ns=exchange.longest_latency_ns,
        links=links,
        ends=ends,
    )


def _leaving(per_token: Float64s) -> Float64s:
    """Bytes of one of each chip's tokens to all others, [kinds, senders]."""
    leaving: Float64s = per_token.sum(axis=2) - np.einsum("kcc->kc", per_token)
    return leaving


def _over_lanes(exchange: TokenExchange, lanes: TierPaths) -> ExchangeTables:
    per_token = exchange.per_token  # [kinds, senders, receivers]
    same_group = exchange.same_group
    chips = len(same_group)
    tiers = [_senders(uses * same_group) for uses in lanes.uses]
    sets = [senders for held, _, _ in tiers for senders in held]
    before = np.cumsum([0, *(len(held) for held, _, _ in tiers)])
    sizes = [np.count_nonzero(senders) for senders in sets]
    none = np.zeros((0, chips))
    return _nothing(len(per_token), chips)._replace(
        carried=True,
        received_bytes=exchange.received_bytes,
        sent_bytes=np.einsum("ksr,tsr->kts", per_token, lanes.uses),
        stuck=exchange.stuck(),
        left_bytes=_leaving(per_token),
        set_of=np.array(
            [first + own for first, (_, own, _) in zip(before, tiers, strict=False)] or none
        ).astype(np.int64),
        itself=np.array([itself for _, _, itself in tiers] or none),
        members=np.concatenate([np.zeros(0, np.int64), *(np.flatnonzero(each) for each in sets)]),
        first_member=np.cumsum([0, *sizes]),
        ns_per_byte=lanes.ns_per_byte,
        latency_ns=exchange.longest_latency_ns,
        legs=_legs_in_groups(lanes.legs, same_group),
    )


def _senders(uses: Float64s) -> tuple[Float64s, Int64s, Float64s]:
    """The different sets of chips that send to a receiver, of uses [senders, receivers].

    Returns the sets [sets, senders], the set of each receiver, and 1 where it has the receiver
    itself, which does not send. With themselves, chips of a tray have one set, else one each.
    """
    found = []
    for itself in (0.0, 1.0):
        senders = uses.T + itself * np.eye(len(uses))
        bits = np.packbits(senders > 0, axis=1)  # shorter to sort
        _, first, own = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        found.append((senders[first], own.ravel(), np.full(len(uses), itself)))
    return min(found, key=lambda each: len(each[0]))


def _legs_in_groups(legs: Int64s, same_group: Float64s) -> Int64s:
    """Legs of the detours between chips of one expert group."""
    return np.ascontiguousarray(legs[same_group[legs[:, 0], legs[:, 1]] > 0])


def nothing_carried(partition: Partition) -> ExchangeTables:
    """No exchange, or one that is timed elsewhere."""
    return _nothing(0, partition.chips)


def _nothing(kinds: int, chips: int) -> ExchangeTables:
    """Neither tiers nor links."""
    whole = np.zeros(0, dtype=np.int64)
    return ExchangeTables(
        carried=False,
        received_bytes=np.zeros((kinds, chips)),
        sent_bytes=np.zeros((kinds, 0, chips)),
        stuck=np.zeros(chips, dtype=np.bool_),
        left_bytes=np.zeros((kinds, chips)),
        set_of=np.zeros((0, chips), dtype=np.int64),
        itself=np.zeros((0, chips)),
        members=whole,
        first_member=np.zeros(1, dtype=np.int64),
        ns_per_byte=np.zeros((0, chips)),
        latency_ns=0.0,
        legs=np.zeros((0, 5), dtype=np.int64),
        links=np.zeros((kinds, chips, 0)),
        ends=np.zeros((0, 2), dtype=np.int64),
    )
