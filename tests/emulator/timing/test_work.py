from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.timing.work import (
    Work,
    attention_work,
    ends_work,
    expert_work,
    rank_totals,
)

TINY = ModelSpec(
    name="tiny",
    layers=2,
    hidden=4,
    heads=2,
    kv_heads=1,
    head_dim=2,
    experts=4,
    experts_per_token=2,
    expert_intermediate=3,
    vocab=10,
    max_context_tokens=64,
    tied_embeddings=False,
    source="a test",
)
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

Row = tuple[int, int, int]  # rank, new tokens, context tokens


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

    def matmul(self, rows: int, columns: int) -> None:
        self.tensor += sum(2 for _ in range(rows) for _ in range(columns))

    def norm(self, elements: int) -> None:
        self.vector += 4 * elements

    def softmax(self, scores: int) -> None:
        self.vector += 4 * scores
        self.scalar += scores

    def same_as(self, work: Work, rank: int) -> bool:
        mine = (self.tensor, self.vector, self.scalar, self.hbm)
        theirs = (work.tensor_flops, work.vector_flops, work.scalar_ops, work.hbm_bytes)
        return mine == tuple(float(array[rank]) for array in theirs)


def slow_attention(model: ModelSpec, rows: list[Row], rank: int) -> Tally:
    tally = Tally()
    mine = [row for row in rows if row[0] == rank]
    for _, new, context in mine:
        tally.hbm += context * 2 * model.kv_heads * model.head_dim * model.kv_bytes_per_element
        for position in range(context, context + new):
            tally.norm(model.hidden)
            tally.matmul(model.hidden, model.heads * model.head_dim)  # queries
            tally.matmul(model.hidden, model.kv_heads * model.head_dim)  # keys
            tally.matmul(model.hidden, model.kv_heads * model.head_dim)  # values
            for _ in range(model.heads + model.kv_heads):
                tally.norm(model.head_dim)
                tally.vector += 3 * model.head_dim  # RoPE
            tally.hbm += 2 * model.kv_heads * model.head_dim * model.kv_bytes_per_element
            for _ in range(model.heads):
                for _key in range(position + 1):
                    tally.matmul(model.head_dim, 1)  # the score
                    tally.matmul(1, model.head_dim)  # its part of the value
                tally.softmax(position + 1)
            tally.matmul(model.heads * model.head_dim, model.hidden)  # output
            tally.vector += model.hidden  # residual
            tally.norm(model.hidden)
            tally.matmul(model.hidden, model.experts)  # router
            tally.softmax(model.experts)
            tally.vector += model.experts  # top k
            tally.vector += 2 * model.experts_per_token * model.hidden  # weighted sum of answers
            tally.vector += model.hidden  # residual
    if mine:
        weights = (
            2 * model.hidden * model.heads * model.head_dim
            + 2 * model.hidden * model.kv_heads * model.head_dim
            + 2 * model.head_dim
            + 2 * model.hidden
            + model.hidden * model.experts
        )
        tally.hbm += weights * model.weight_bytes_per_param
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
        tally.hbm += 4 * model.vocab
    if logit_rows:
        tally.hbm += row_bytes + model.vocab * row_bytes
    return tally


def test_one_decode_token_over_three_cached_ones_by_hand() -> None:
    work = attention_work(TINY, rank_totals(batch_of(1, [(0, 1, 3)])))

    # 48 projection and 16 router weights; 4 keys x 2 heads x 2 elements, scores and values
    assert work.tensor_flops.tolist() == [2 * (48 + 16) + 2 * 2 * (4 * 2 * 2)]
    # 76 BF16 parameters; 4 elements of K and V for each of 3 cached tokens and the new one
    assert work.hbm_bytes.tolist() == [76 * 2 + 4 * 2 * (3 + 1)]
    # one exp for each of 4 scores of 2 heads, and for each of 4 router scores
    assert work.scalar_ops.tolist() == [4 * 2 + 4]
    # norms 4 x (4 + 4 + 6), RoPE 3 x 6, residuals 2 x 4, router 5 x 4, sum 2 x 2 x 4, softmax 4 x 8
    assert work.vector_flops.tolist() == [56 + 18 + 8 + 20 + 16 + 32]


def test_experts_of_one_token_on_one_chip_by_hand() -> None:
    work = expert_work(TINY, 1, ep=1)

    assert work.tensor_flops.tolist() == [2 * 2 * 36]  # two experts of 3 x 4 x 3 weights
    assert work.vector_flops.tolist() == [2 * 2 * 3]
    assert work.scalar_ops.tolist() == [2 * 3]
    assert work.hbm_bytes.tolist() == pytest.approx([2 * 36 * 2])


def test_the_ends_of_a_prefill_with_one_row_of_logits_by_hand() -> None:
    work = ends_work(TINY, rank_totals(batch_of(1, [(0, 5, 0)])))

    assert work.tensor_flops.tolist() == [2 * 4 * 10]
    assert work.vector_flops.tolist() == [4 * 4 + 4 * 10]
    assert work.scalar_ops.tolist() == [10]
    assert work.hbm_bytes.tolist() == [5 * 8 + 8 + 80 + 4 * 10]


def test_a_chunk_attends_causally_over_its_context() -> None:
    totals = rank_totals(batch_of(2, [(1, 3, 10), (1, 2, 0)]))

    assert totals.attended.tolist() == [0, 11 + 12 + 13 + 1 + 2]
    assert totals.context_tokens.tolist() == [0, 10]
    assert totals.tokens.tolist() == [0, 5]


@given(rows=rows_strategy, model=st.sampled_from([TINY, OTHER]))
def test_the_formulas_equal_counting_token_by_token(rows: list[Row], model: ModelSpec) -> None:
    batch = batch_of(4, rows)
    totals = rank_totals(batch)
    attention, ends = attention_work(model, totals), ends_work(model, totals)

    for rank in range(4):
        assert slow_attention(model, rows, rank).same_as(attention, rank)
        assert slow_ends(model, rows, rank, int(batch.logit_rows[rank])).same_as(ends, rank)


@given(rows=rows_strategy)
def test_a_rank_among_others_works_as_it_does_alone(rows: list[Row]) -> None:
    together = attention_work(TINY, rank_totals(batch_of(4, rows)))

    for rank in range(4):
        own_rows = [(0, new, context) for owner, new, context in rows if owner == rank]
        alone = attention_work(TINY, rank_totals(batch_of(1, own_rows)))
        for name in ("tensor_flops", "vector_flops", "scalar_ops", "hbm_bytes"):
            assert getattr(together, name)[rank] == getattr(alone, name)[0]


def test_a_prompt_in_chunks_attends_as_often_as_in_one_piece() -> None:
    whole = rank_totals(batch_of(1, [(0, 12, 0)]))
    chunks = rank_totals(batch_of(1, [(0, 5, 0), (0, 5, 5), (0, 2, 10)]))

    assert whole.attended.tolist() == chunks.attended.tolist()
    assert whole.tokens.tolist() == chunks.tokens.tolist()


@given(tokens=st.integers(0, 500), ep=st.sampled_from([1, 2, 4]))
def test_expert_chips_together_do_every_assignment_once(tokens: int, ep: int) -> None:
    work = expert_work(TINY, tokens, ep)

    assert ep * work.tensor_flops[0] == pytest.approx(tokens * 2 * 2 * TINY.expert_parameters)
    assert ep * work.hbm_bytes[0] <= 4 * TINY.expert_parameters * 2


def test_an_idle_rank_reads_nothing() -> None:
    work = attention_work(TINY, rank_totals(batch_of(2, [(1, 1, 1)])))
    ends = ends_work(TINY, rank_totals(batch_of(2, [(1, 1, 1)])))

    assert work.hbm_bytes[0] == 0
    assert ends.hbm_bytes[0] == 0
    assert work.tensor_flops[0] == 0


def test_work_adds_by_resource() -> None:
    first, second = expert_work(TINY, 1, ep=1), expert_work(TINY, 3, ep=1)
    both = first + second

    for name in ("tensor_flops", "vector_flops", "scalar_ops", "hbm_bytes"):
        assert getattr(both, name) == getattr(first, name) + getattr(second, name)
