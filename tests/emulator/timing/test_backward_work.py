from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.latent_attention import LatentAttention
from emulator.specs.model import ModelSpec
from emulator.timing.attention_work import attention_work
from emulator.timing.backward_work import (
    attention_backward,
    dense_backward,
    expert_backward,
    lm_head_backward,
    loss_backward,
    router_backward,
)
from emulator.timing.feed_forward_work import expert_work, router_work
from emulator.timing.gradient_shape import GradientShape
from emulator.timing.head_split import HeadSplit, head_split
from emulator.timing.issue_shape import IssueShape
from emulator.timing.rank_totals import RankTotals, rank_totals
from emulator.timing.work import EngineWork
from tests.emulator.specs.tiny_model import TINY
from tests.emulator.timing.backward_reference import backward_flops

DENSE = replace(TINY, experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=5)
MIXED = replace(TINY, layers=3, first_dense_layers=1, dense_intermediate=5, shared_experts=1)
WINDOWED = replace(TINY, window_tokens=3, full_attention_every=2)
LATENT = replace(
    TINY,
    kv_heads=2,
    query_key_norms=False,
    latent=LatentAttention(query_rank=3, kv_rank=5, nope_dim=2, rope_dim=2, value_dim=2),
)


class OneChip:
    """Backward works of `model` over whole sequences on one chip of one logical core."""

    def __init__(self, model: ModelSpec, sequences: list[int]) -> None:
        self.model = model
        self.split: HeadSplit = head_split(model, tp=1, cores=1)
        self.shape = IssueShape.of(model, TRAINIUM3, tp=1, cores=1)
        self.gradients = GradientShape.of(model, TRAINIUM3, cores=1)
        batch = StepBatch(
            ranks=1,
            rank=np.zeros(len(sequences), dtype=np.int64),
            new_tokens=np.array(sequences),
            context_tokens=np.zeros(len(sequences), dtype=np.int64),
            logit_rows=np.array([sum(sequences)]),
        )
        self.totals: RankTotals = rank_totals(batch, model, self.shape)
        self.pairs = self.totals.tokens * model.experts_per_token

    def attention(self, *, window: bool = False) -> EngineWork:
        shapes = (self.split, self.shape, self.gradients)
        return attention_backward(self.model, self.totals, *shapes, window=window)

    def works(self) -> list[tuple[int, EngineWork]]:
        """Each part with how often a pass has it."""
        model, shapes = self.model, (self.split, self.shape, self.gradients)
        parts = [
            (model.full_layers, self.attention()),
            (1, lm_head_backward(model, self.totals, *shapes)),
            (1, loss_backward(model, self.totals)),
        ]
        if model.window_layers:
            parts.append((model.window_layers, self.attention(window=True)))
        if model.dense_layers:
            parts.append((model.dense_layers, dense_backward(model, self.totals, *shapes)))
        if model.moe_layers:
            parts.append((model.moe_layers, router_backward(model, self.totals, *shapes)))
            experts = expert_backward(
                model, self.pairs, np.array([float(model.experts)]), self.shape, self.gradients
            )
            parts.append((model.moe_layers, experts))
        return parts

    def flops(self) -> float:
        return sum(times * float(work.flops.sum(axis=0)[0]) for times, work in self.works())


@pytest.mark.parametrize("model", [TINY, DENSE, MIXED, WINDOWED, LATENT])
@settings(max_examples=15)
@given(sequences=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_a_backward_pass_does_the_products_that_a_slow_walk_counts(
    model: ModelSpec, sequences: list[int]
) -> None:
    assert OneChip(model, sequences).flops() == backward_flops(model, sequences)


def test_attention_moves_its_forward_bytes_again_gradients_and_what_was_kept_by_hand() -> None:
    chip = OneChip(TINY, [3])
    forward = attention_work(TINY, chip.totals, chip.split, chip.shape, window=False)
    # 48 weights of projections, norms of 4, 4, 2 and 2; keys and values of 3 tokens; in BF16
    assert forward.hbm_bytes[0] == 2 * (48 + 12) + 3 * 8

    work = chip.attention()

    assert work.hbm_bytes[0] == forward.hbm_bytes[0] + 8 * (48 + 12) + 3 * 48
    assert work.vector_flops[0] == 2 * forward.vector_flops[0]
    assert work.scalar_ops[0] == forward.scalar_ops[0]


def test_experts_write_a_gradient_for_each_expert_that_is_hit_by_hand() -> None:
    chip = OneChip(TINY, [3])
    pairs, distinct = np.array([6.0]), np.array([3.0])
    forward = expert_work(TINY, pairs, distinct, chip.shape)

    work = expert_backward(TINY, pairs, distinct, chip.shape, chip.gradients)

    assert forward.hbm_bytes[0] == 3 * 2 * 36
    assert work.hbm_bytes[0] == forward.hbm_bytes[0] + 3 * 8 * 36 + 6 * 26
    assert (work.issued_flops >= work.flops).all()


def test_the_ends_move_gradients_of_logits_head_and_embedded_rows_by_hand() -> None:
    chip = OneChip(TINY, [3])
    work = lm_head_backward(TINY, chip.totals, chip.split, chip.shape, chip.gradients)
    # three embedded rows, the head and the last norm; logits are written, then read twice; the
    # head's gradient and three embedded rows'; the rows that went into the head
    head = 3 * 8 + 80 + 8
    gradients = 8 * (40 + 3 * 4)

    assert work.hbm_bytes[0] == head + 3 * 4 * 30 + gradients + 3 * 8
    assert loss_backward(TINY, chip.totals).hbm_bytes[0] == 4 * 30
    assert loss_backward(TINY, chip.totals).vector_flops[0] == 2 * 30


def test_a_chip_that_no_token_picks_has_no_expert_work() -> None:
    chip = OneChip(TINY, [3])
    nothing = np.zeros(1)

    work = expert_backward(TINY, nothing, nothing, chip.shape, chip.gradients)

    assert work.flops.sum(axis=0)[0] == work.hbm_bytes[0] == work.vector_flops[0] == 0
    assert router_work(TINY, chip.totals, chip.split, chip.shape).hbm_bytes[0] > 0
