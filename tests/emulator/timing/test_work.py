from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.latent_attention import LatentAttention
from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat
from emulator.timing.attention_work import attention_work
from emulator.timing.feed_forward_work import (
    dense_work,
    expert_work,
    lm_head_work,
    router_work,
    sampling_work,
)
from emulator.timing.head_split import HeadSplit, head_split
from emulator.timing.issue_shape import IssueShape
from emulator.timing.product_rate import ProductRate
from emulator.timing.rank_totals import RankTotals
from emulator.timing.rank_totals import rank_totals as rank_totals_of
from emulator.timing.work import EngineWork
from tests.emulator.specs.tiny_model import TINY

OTHER = replace(
    TINY,
    name="other",
    hidden=6,
    heads=6,
    kv_heads=3,
    experts=8,
    experts_per_token=3,
    weight_bytes_per_param=4,
    kv_bytes_per_element=4,
)

WINDOWED = replace(
    OTHER,
    name="windowed",
    query_key_norms=False,
    attention_bias=True,
    sinks=True,
    router_bias=WeightFormat.FP32,
    window_tokens=5,
    full_attention_every=2,
    shared_experts=2,
)
LATENT = replace(
    TINY,
    name="latent",
    heads=4,
    kv_heads=4,
    head_dim=3,
    query_key_norms=False,
    latent=LatentAttention(query_rank=5, kv_rank=6, nope_dim=3, rope_dim=2, value_dim=3),
)
WHOLE = HeadSplit(query_share=1, kv_share=1, column_share=1)

Row = tuple[int, int, int]  # rank, new tokens, context tokens


def shape_of(model: ModelSpec, *, tp: int = 1, cores: int = 1) -> IssueShape:
    return IssueShape.of(model, TRAINIUM3, tp=tp, cores=cores)


def rank_totals(batch: StepBatch, model: ModelSpec) -> RankTotals:
    return rank_totals_of(batch, model, shape_of(model))


def ends_work(model: ModelSpec, totals: RankTotals, split: HeadSplit) -> EngineWork:
    return lm_head_work(model, totals, split, shape_of(model)) + sampling_work(model, totals)


def batch_of(ranks: int, rows: list[Row], logit_rows: list[int] | None = None) -> StepBatch:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    last_tokens = np.bincount(columns[:, 0], minlength=ranks)
    return StepBatch(
        ranks=ranks,
        rank=columns[:, 0],
        new_tokens=columns[:, 1],
        context_tokens=columns[:, 2],
        logit_rows=last_tokens if logit_rows is None else np.array(logit_rows, dtype=np.int64),
    )


rows_strategy = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 20)), max_size=8
)


@dataclass
class Tally:
    """Counts as a person would: one token, one matrix, one head, one key after the other."""

    tensor: int = 0
    vector: int = 0
    scalar: int = 0
    hbm: int = 0
    gpsimd: int = 0

    def matmul(self, rows: int, columns: int) -> None:
        self.tensor += sum(2 for _ in range(rows) for _ in range(columns))

    def norm(self, elements: int) -> None:
        self.vector += 4 * elements

    def softmax(self, scores: int) -> None:
        self.vector += 4 * scores
        self.scalar += scores

    def same_as(self, work: EngineWork, rank: int) -> bool:
        mine = (self.tensor, self.vector, self.scalar, self.gpsimd, self.hbm)
        theirs = (
            work.flops.sum(axis=0),
            work.vector_flops,
            work.scalar_ops,
            work.gpsimd_ops,
            work.hbm_bytes,
        )
        one = tuple(
            float(np.broadcast_to(array, work.flops.sum(axis=0).shape)[rank]) for array in theirs
        )
        return mine == one


def slow_layer(model: ModelSpec, rows: list[Row], rank: int, *, window: bool) -> Tally:
    """Attention and router of one layer, without a latent."""
    tally = Tally()
    heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
    reach = model.window_tokens if window else 10**9
    mine = [row for row in rows if row[0] == rank]
    for _, new, context in mine:
        tally.hbm += min(context, reach - 1) * 2 * kv_heads * dim * model.kv_bytes_per_element
        for position in range(context, context + new):
            tally.norm(model.hidden)
            tally.matmul(model.hidden, heads * dim)  # queries
            tally.matmul(model.hidden, kv_heads * dim)  # keys
            tally.matmul(model.hidden, kv_heads * dim)  # values
            for _ in range(heads + kv_heads):
                if model.query_key_norms:
                    tally.norm(dim)
                tally.vector += 3 * dim  # RoPE
            tally.hbm += 2 * kv_heads * dim * model.kv_bytes_per_element
            for _ in range(heads):
                seen = min(position + 1, reach)
                for _key in range(seen):
                    tally.matmul(dim, 1)  # the score
                    tally.matmul(1, dim)  # its part of the value
                tally.softmax(seen + (1 if model.sinks else 0))
            tally.matmul(heads * dim, model.hidden)  # output
            if model.attention_bias:
                tally.vector += (heads + 2 * kv_heads) * dim + model.hidden
            tally.vector += model.hidden  # residual
            tally.norm(model.hidden)
            tally.matmul(model.hidden, model.experts)  # router
            tally.vector += 0 if model.router_bias is None else model.experts
            tally.softmax(model.experts)
            tally.vector += model.experts  # top k
            tally.gpsimd += model.experts_per_token  # indices of those picked
            tally.vector += 2 * model.experts_per_token * model.hidden  # weighted sum of answers
            tally.vector += model.hidden  # residual
            for _ in range(model.shared_experts):
                tally.matmul(3 * model.hidden, model.expert_intermediate)
                tally.vector += 2 * model.expert_intermediate
                tally.scalar += model.expert_intermediate
    if mine:
        weights = 2 * model.hidden * heads * dim + 2 * model.hidden * kv_heads * dim
        weights += 2 * dim if model.query_key_norms else 0
        weights += (heads + 2 * kv_heads) * dim + model.hidden if model.attention_bias else 0
        weights += heads if model.sinks else 0
        weights += 2 * model.hidden + model.hidden * model.experts
        weights += model.shared_experts * 3 * model.hidden * model.expert_intermediate
        tally.hbm += weights * model.weight_bytes_per_param
        tally.hbm += 0 if model.router_bias is None else 4 * model.experts
    return tally


def slow_ends(model: ModelSpec, rows: list[Row], rank: int, logit_rows: int) -> Tally:
    tally = Tally()
    row_bytes = model.hidden * model.weight_bytes_per_param
    for owner, new, _ in rows:
        tally.hbm += row_bytes * new if owner == rank else 0  # embedding rows
    for _ in range(logit_rows):
        tally.norm(model.hidden)
        tally.matmul(model.hidden, model.vocab)
        tally.softmax(model.vocab)
        tally.hbm += 2 * 4 * model.vocab  # written, and read for sampling
        tally.gpsimd += model.vocab
    if logit_rows:
        tally.hbm += row_bytes + model.vocab * row_bytes
    return tally


def layer_work(
    model: ModelSpec, batch: StepBatch, split: HeadSplit = WHOLE, *, window: bool = False
) -> EngineWork:
    totals = rank_totals(batch, model)
    attention = attention_work(model, totals, split, shape_of(model), window=window)
    return attention + router_work(model, totals, split, shape_of(model))


def test_one_decode_token_over_three_cached_ones_by_hand() -> None:
    work = layer_work(TINY, batch_of(1, [(0, 1, 3)]))

    # 48 projection and 16 router weights; 4 keys x 2 heads x 2 elements, scores and values
    assert work.flops.sum(axis=0).tolist() == [2 * (48 + 16) + 2 * 2 * (4 * 2 * 2)]
    # 76 BF16 parameters; 4 elements of K and V for each of 3 cached tokens and the new one
    assert work.hbm_bytes.tolist() == [76 * 2 + 4 * 2 * (3 + 1)]
    # one exp for each of 4 scores of 2 heads, and for each of 4 router scores
    assert work.scalar_ops.tolist() == [4 * 2 + 4]
    # norms 4 x (4 + 4 + 6), RoPE 3 x 6, residuals 2 x 4, router 5 x 4, sum 2 x 2 x 4, softmax 4 x 8
    assert work.vector_flops.tolist() == [56 + 18 + 8 + 20 + 16 + 32]


def test_one_of_four_chips_does_its_heads_and_all_of_the_router_by_hand() -> None:
    model = replace(TINY, heads=4, kv_heads=2)
    split = head_split(model, tp=4, cores=1)  # one query head, and one key head that two chips have
    totals = rank_totals(batch_of(1, [(0, 1, 3)]), model)

    attention = attention_work(model, totals, split, shape_of(model, tp=4), window=False)
    router = router_work(model, totals, split, shape_of(model))

    # query and output 2 x 4 x 2, key and value 2 x 4 x 2; 4 keys x 2 elements, scores and values
    assert attention.flops.sum(axis=0).tolist() == [2 * (16 + 16) + 2 * 2 * (4 * 2)]
    # those 32, the norms of 4 + 4 + 2 + 2; one head's K and V of 3 + 1 tokens
    assert attention.hbm_bytes.tolist() == [(32 + 12) * 2 + 4 * 2 * 2 * 2]
    assert router.flops.sum(axis=0).tolist() == [2 * 16]
    # norm 4 x 4, residual 4, router 5 x 4, and a quarter of the weighted sum of 2 x 2 x 4
    assert router.vector_flops.tolist() == [16 + 4 + 20 + 4]


def test_a_latent_is_folded_in_decode_and_unfolded_in_prefill_by_hand() -> None:
    ups = 6 * (3 + 3)  # a head's up-projection
    decode = rank_totals(batch_of(1, [(0, 1, 99)]), LATENT)
    prefill = rank_totals(batch_of(1, [(0, 10, 0)]), LATENT)

    # 100 keys: the score on 6 + 2 elements, the value on 6; unfolded it would be 100 x (5 + 3 + 36)
    assert decode.head_macs.tolist() == [100 * (8 + 6) + ups]
    # 55 pairs: 5 + 3 elements each; folded it would be 55 x 14 + 10 x 36
    assert prefill.head_macs.tolist() == [55 * (5 + 3) + 10 * ups]


def test_a_decode_token_of_a_latent_model_by_hand() -> None:
    work = attention_work(
        LATENT,
        rank_totals(batch_of(1, [(0, 1, 99)]), LATENT),
        WHOLE,
        shape_of(LATENT),
        window=False,
    )

    down, up_queries, up_latent, out = 5 * 4 + 8 * 4, 4 * 5 * 5, 4 * 6 * 6, 4 * 3 * 4
    head_macs = 100 * (8 + 6) + 36
    assert work.flops.sum(axis=0).tolist() == [2 * (down + up_queries + out + 4 * head_macs)]
    weights = down + up_queries + up_latent + out + (4 + 4 + 5 + 6)
    assert work.hbm_bytes.tolist() == [weights * 2 + 100 * 8 * 2]
    # norms of the hidden row and both latents, RoPE of four heads and the shared key, residual
    assert work.vector_flops.tolist() == [4 * (4 + 5 + 6) + 3 * (4 * 2 + 2) + 4 + 4 * 400]
    assert work.scalar_ops.tolist() == [400]


def test_every_core_reads_the_whole_latent_and_its_own_heads() -> None:
    totals = rank_totals(batch_of(1, [(0, 1, 99)]), LATENT)
    one = attention_work(
        LATENT, totals, head_split(LATENT, tp=1, cores=1), shape_of(LATENT), window=False
    )
    four = attention_work(
        LATENT, totals, head_split(LATENT, tp=1, cores=4), shape_of(LATENT, cores=4), window=False
    )

    assert four.hbm_bytes[0] - one.hbm_bytes[0] == 3 * 100 * 8 * 2
    assert four.flops.sum(axis=0)[0] == one.flops.sum(axis=0)[0]


def test_experts_of_one_token_on_one_chip_by_hand() -> None:
    work = expert_work(TINY, np.array([2.0]), np.array([2.0]), shape_of(TINY))

    assert work.flops.sum(axis=0).tolist() == [2 * 2 * 36]  # two experts of 3 x 4 x 3 weights
    assert work.gpsimd_ops.tolist() == [2 * 4]  # two rows of 4 elements are gathered
    assert work.vector_flops.tolist() == [2 * 2 * 3]
    assert work.scalar_ops.tolist() == [2 * 3]
    assert work.hbm_bytes.tolist() == [2 * 36 * 2]


def test_experts_in_four_bits_run_at_the_mx_rate_on_quantised_activations_by_hand() -> None:
    model = replace(TINY, stored_expert_format=WeightFormat.MXFP4, expert_bias=True)

    work = expert_work(model, np.array([5.0]), np.array([2.0]), shape_of(model))

    by_rate = {rate: flops.tolist() for rate, flops in zip(ProductRate, work.flops, strict=True)}
    assert by_rate.pop(ProductRate.FP4) == [2 * 5 * 36]
    assert all(flops == [0] for flops in by_rate.values())
    # SwiGLU 2 x 3, biases 3 + 3 + 4, quantised 2 x (4 + 3)
    assert work.vector_flops.tolist() == [5 * (6 + 10 + 14)]
    # 3 rows of 4 elements twice and 4 rows of 3, each row with one scale; biases in BF16
    assert work.hbm_bytes.tolist() == [2 * (2 * 3 * (2 + 1) + 4 * (2 + 1) + 10 * 2)]


def test_a_dense_network_is_divided_by_columns_by_hand() -> None:
    model = replace(
        TINY, experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=6
    )
    totals = rank_totals(batch_of(1, [(0, 5, 0)]), model)

    work = dense_work(model, totals, replace(WHOLE, column_share=0.5), shape_of(model))

    assert work.flops.sum(axis=0).tolist() == [2 * 5 * 3 * 4 * 3]
    assert work.vector_flops.tolist() == [5 * (4 * 4 + 4) + 2 * 5 * 3]
    assert work.scalar_ops.tolist() == [5 * 3]
    assert work.hbm_bytes.tolist() == [3 * 4 * 3 * 2]


def test_the_ends_of_a_prefill_with_one_row_of_logits_by_hand() -> None:
    work = ends_work(TINY, rank_totals(batch_of(1, [(0, 5, 0)]), TINY), WHOLE)

    assert work.flops.sum(axis=0).tolist() == [2 * 4 * 10]
    assert work.vector_flops.tolist() == [4 * 4 + 4 * 10]
    assert work.scalar_ops.tolist() == [10]
    # an embedding row each, the last norm, the LM head, and logits that are written and read
    assert work.hbm_bytes.tolist() == [5 * 8 + 8 + 80 + 2 * 4 * 10]
    assert work.gpsimd_ops.tolist() == [10]


def test_a_vocabulary_over_two_chips_halves_all_but_the_last_norm_and_sampling() -> None:
    totals = rank_totals(batch_of(1, [(0, 5, 0)]), TINY)
    work = ends_work(TINY, totals, replace(WHOLE, column_share=0.5))

    # each chip has all logits when it samples
    assert work.flops.sum(axis=0).tolist() == [4 * 10]
    assert work.hbm_bytes.tolist() == [(5 * 8 + 80 + 4 * 10) / 2 + 8 + 4 * 10]


@given(rows=rows_strategy, model=st.sampled_from([TINY, OTHER, WINDOWED]), window=st.booleans())
def test_the_formulas_equal_counting_token_by_token(
    rows: list[Row], model: ModelSpec, window: bool
) -> None:
    window = window and model.window_tokens > 0
    batch = batch_of(4, rows)
    layer = layer_work(model, batch, window=window)
    ends = ends_work(model, rank_totals(batch, model), WHOLE)

    for rank in range(4):
        assert slow_layer(model, rows, rank, window=window).same_as(layer, rank)
        assert slow_ends(model, rows, rank, int(batch.logit_rows[rank])).same_as(ends, rank)


@given(rows=rows_strategy, model=st.sampled_from([TINY, WINDOWED, LATENT]))
def test_a_rank_among_others_works_as_it_does_alone(rows: list[Row], model: ModelSpec) -> None:
    together = layer_work(model, batch_of(4, rows))

    for rank in range(4):
        own_rows = [(0, new, context) for owner, new, context in rows if owner == rank]
        alone = layer_work(model, batch_of(1, own_rows))
        assert together.flops.sum(axis=0)[rank] == alone.flops.sum(axis=0)[0]
        for name in ("vector_flops", "scalar_ops", "hbm_bytes"):
            assert getattr(together, name)[rank] == getattr(alone, name)[0]


def test_work_adds_by_resource() -> None:
    first = EngineWork.of(
        flops={ProductRate.PLAIN: 1, ProductRate.FP8: 2},
        issued_flops={ProductRate.FP8: 8},
        vector_flops=3,
        scalar_ops=4,
        gpsimd_ops=5,
        hbm_bytes=6,
        lost_bytes=7,
    )
    both = first + first

    assert both.flops.tolist() == [[2], [0], [4], [0]]
    assert both.issued_flops.tolist() == [[0], [0], [16], [0]]
    rest = ("vector_flops", "scalar_ops", "gpsimd_ops", "hbm_bytes", "lost_bytes")
    assert [float(getattr(both, name)) for name in rest] == [6, 8, 10, 12, 14]


def test_an_idle_rank_reads_nothing() -> None:
    batch = batch_of(2, [(1, 1, 1)])
    work, ends = layer_work(TINY, batch), ends_work(TINY, rank_totals(batch, TINY), WHOLE)

    assert work.hbm_bytes[0] == 0
    assert ends.hbm_bytes[0] == 0
    assert work.flops.sum(axis=0)[0] == 0


def test_what_is_multiplied_in_8_bits_is_quantised_before_each_product_by_hand() -> None:
    dense = replace(
        TINY, experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=6
    )
    eight_bits = replace(dense, stored_projection_format=WeightFormat.FP8_BLOCK128)
    batch = batch_of(1, [(0, 5, 0)])

    def vector_flops(model: ModelSpec) -> tuple[float, float]:
        totals, shape = rank_totals(batch, model), shape_of(model)
        attention = attention_work(model, totals, WHOLE, shape, window=False)
        return (
            attention.vector_flops[0],
            dense_work(model, totals, WHOLE, shape).vector_flops[0],
        )

    (plain_attention, plain_dense), (attention, network) = map(vector_flops, (dense, eight_bits))
    # a token's hidden row of 4 and the values of two heads of 2; its hidden row, and 6 activations
    assert attention - plain_attention == 5 * 2 * (4 + 4)
    assert network - plain_dense == 5 * 2 * (4 + 6)


def test_a_latent_in_8_bits_is_quantised_too_by_hand() -> None:
    eight_bits = replace(LATENT, stored_projection_format=WeightFormat.FP8_BLOCK128)
    batch = batch_of(1, [(0, 1, 0)])

    plain, quantised = (
        attention_work(model, rank_totals(batch, model), WHOLE, shape_of(model), window=False)
        for model in (LATENT, eight_bits)
    )

    # the hidden row of 4, the queries' latent of 5, and the values of four heads of 3
    assert quantised.vector_flops[0] - plain.vector_flops[0] == 2 * (4 + 5 + 12)
