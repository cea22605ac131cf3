"""Attention of decodes over a chip's logical cores, core by core."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.attention_split import AttentionSplit
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.deepseek_v3 import DEEPSEEK_V3
from emulator.specs.chips import chip_by_name
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.timing.core_attention import CoreAttention
from emulator.timing.issue_shape import IssueShape
from emulator.timing.rank_totals import RankTotals, rank_totals
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.ultraserver.tiny_steps import batch_of

CHIP = chip_by_name("trainium3")
HEADS, BATCH, SEQUENCE = AttentionSplit
TOKEN_BYTES = DEEPSEEK_V3.kv_bytes_per_token_layer


def on_four_cores(model: str, split: AttentionSplit, *, tp: int) -> CoreAttention:
    return CoreAttention.of(model_by_name(model), CHIP, tp=tp, cores=4, split=split)


def test_a_latent_on_four_cores_by_hand() -> None:
    by_heads = on_four_cores("deepseek-v3", HEADS, tp=1)
    by_batch = on_four_cores("deepseek-v3", BATCH, tp=1)
    by_keys = on_four_cores("deepseek-v3", SEQUENCE, tp=1)

    assert [each.cache_share for each in (by_heads, by_batch, by_keys)] == [4, 1, 1]
    assert [each.group for each in (by_heads, by_batch, by_keys)] == [32, 128, 128]
    assert by_heads.exchanged_bytes == by_heads.join_flops == by_batch.join_flops == 0
    rows = 2 * 128 * (576 + 512)  # queries on the latent, outputs on its values, of all heads
    # three quarters of what a core has comes from the others; the new latent goes to one of them
    assert by_batch.exchanged_bytes == 0.75 * (rows + 2 * 576) / 4
    assert by_keys.exchanged_bytes == 0.75 * (rows + 4 * 128 + 2 * 576 / 4)
    assert by_keys.join_flops == 2 * 4 * 128 * 512


def test_two_key_heads_on_four_cores_by_hand() -> None:
    by_heads = on_four_cores("gpt-oss-120b", HEADS, tp=4)  # 64 and 8 heads over 16 cores
    by_batch = on_four_cores("gpt-oss-120b", BATCH, tp=4)

    assert (by_heads.cache_share, by_batch.cache_share) == (4 / 8, 2 / 8)
    assert (by_heads.group, by_batch.group) == (4, 8)
    rows = 2 * 16 * (64 + 64)
    assert by_batch.exchanged_bytes == 0.75 * (rows + 2 * 2 * 2 * 64) / 4


@pytest.mark.parametrize("split", [BATCH, SEQUENCE])
def test_one_core_has_nothing_to_divide(split: AttentionSplit) -> None:
    whole = CoreAttention.of(DEEPSEEK_V3, CHIP, tp=1, cores=1, split=split)
    assert whole == CoreAttention.of(DEEPSEEK_V3, CHIP, tp=1, cores=1, split=HEADS)
    assert not whole.is_apart


def totals(split: AttentionSplit, rows: list[tuple[int, int, int]]) -> RankTotals:
    shape = IssueShape.of(DEEPSEEK_V3, CHIP, tp=1, cores=4, split=split)
    return rank_totals(batch_of(1, rows), DEEPSEEK_V3, shape)


def test_six_requests_on_four_cores_wait_for_two_by_hand() -> None:
    found = totals(BATCH, [(0, 1, 1_000)] * 6 + [(0, 500, 0)])

    assert found.decode_tokens.tolist() == [6]
    assert found.any_decodes.tolist() == [1]
    assert found.decode_context_tokens.tolist() == [6_000]
    # two cores have two requests, two have one: as if there were eight
    assert found.idle_context_tokens == pytest.approx(2_000)
    assert found.idle_attended == pytest.approx(2 * 1_001)


def test_a_prompt_and_a_long_chunk_are_attended_by_heads() -> None:
    for split in (BATCH, SEQUENCE):
        found, by_heads = (totals(each, [(0, 18, 900), (0, 300, 0)]) for each in (split, HEADS))
        assert found == by_heads or all(
            getattr(found, name).tolist() == getattr(by_heads, name).tolist()
            for name in RankTotals.__dataclass_fields__
        )


def test_keys_on_four_cores_take_a_tile_of_each_by_hand() -> None:
    by_keys, whole = totals(SEQUENCE, [(0, 1, 2_047)]), totals(BATCH, [(0, 1, 2_047)])
    assert by_keys.issued_head_macs == whole.issued_head_macs  # 2,048 keys are four whole tiles
    short, alone = totals(SEQUENCE, [(0, 1, 99)]), totals(BATCH, [(0, 1, 99)])
    assert short.issued_cached_macs == 4 * alone.issued_cached_macs


def step_ns(split: AttentionSplit, rows: list[tuple[int, int, int]], *, lnc: int = 2) -> int:
    partition = Partition(chips=16, ep=16, lnc=lnc, attention_split=split)
    costs = StepCostModel(
        system_by_name("trn3-nl72x2"), DEEPSEEK_V3, partition, calibration=ROOFLINE
    )
    return costs.cost(batch_of(16, rows)).duration_ns


def test_a_full_batch_over_long_contexts_reads_the_latent_once() -> None:
    rows = [(rank, 1, 8_000) for rank in range(16) for _ in range(64)]
    partitions = {
        split: Partition(chips=16, ep=16, attention_split=split) for split in AttentionSplit
    }
    read = {
        split: StepCostModel(
            system_by_name("trn3-nl72x2"), DEEPSEEK_V3, partition, calibration=ROOFLINE
        )
        .cost(batch_of(16, rows))
        .hbm_bytes[0]
        for split, partition in partitions.items()
    }

    spared = 3 * 64 * 8_000 * TOKEN_BYTES * DEEPSEEK_V3.layers
    assert read[HEADS] - read[BATCH] == pytest.approx(
        spared + 3 * 64 * TOKEN_BYTES * DEEPSEEK_V3.layers
    )
    assert read[BATCH] == read[SEQUENCE]
    assert step_ns(BATCH, rows) < step_ns(SEQUENCE, rows) < step_ns(HEADS, rows)


def test_one_long_request_is_best_divided_by_its_keys() -> None:
    rows = [(rank, 1, 60_000) for rank in range(16)]
    assert step_ns(SEQUENCE, rows) < step_ns(HEADS, rows)
    assert step_ns(SEQUENCE, rows) < step_ns(BATCH, rows)


def test_prompts_take_as_long_whatever_the_split() -> None:
    rows = [(rank, 2_000, 0) for rank in range(16)]
    assert len({step_ns(split, rows) for split in AttentionSplit}) == 1


@pytest.mark.parametrize("split", AttentionSplit)
def test_a_logical_core_of_all_physical_ones_has_nothing_to_divide(split: AttentionSplit) -> None:
    rows = [(rank, 1, 4_000) for rank in range(16)]
    assert step_ns(split, rows, lnc=8) == step_ns(HEADS, rows, lnc=8)


@given(contexts=st.lists(st.integers(200, 5_000), min_size=1, max_size=40), cores=st.integers(2, 8))
def test_no_core_waits_for_less_than_its_requests(contexts: list[int], cores: int) -> None:
    """Requests dealt to the cores in turn, the mean one's keys each: the busiest core's time."""
    shape = IssueShape.of(DEEPSEEK_V3, CHIP, tp=1, cores=cores, split=BATCH)
    found = rank_totals(batch_of(1, [(0, 1, each) for each in contexts]), DEEPSEEK_V3, shape)

    dealt = np.bincount(np.arange(len(contexts)) % cores, minlength=cores)
    busiest = cores * dealt.max() * np.mean(contexts)
    assert found.decode_context_tokens[0] + found.idle_context_tokens[0] == pytest.approx(busiest)
