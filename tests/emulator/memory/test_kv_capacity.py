from dataclasses import replace

import pytest

from emulator.errors import HbmExhausted
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.memory.hbm_layout import lay_out
from emulator.memory.model_memory import ModelMemory
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.models import GPT_OSS_120B, LLAMA_3_1_8B, QWEN3_235B_A22B
from emulator.specs.partition import Partition

CASES = [
    (GPT_OSS_120B, Partition(chips=1, ep=1, lnc=2)),
    (GPT_OSS_120B, Partition(chips=8, tp=4, ep=8, lnc=1)),
    (LLAMA_3_1_8B, Partition(chips=2, tp=2, ep=1, lnc=8)),
    (QWEN3_235B_A22B, Partition(chips=12, ep=12, lnc=2)),
]


@pytest.mark.parametrize(("model", "partition"), CASES, ids=lambda case: getattr(case, "name", ""))
@pytest.mark.parametrize("utilization", [1.0, 0.9])
def test_room_is_what_the_layout_finds(model, partition, utilization):
    terms = HbmTerms(utilization=utilization)
    laid_out = lay_out(
        ModelMemory.of(model, head_groups=model.heads),
        TRN3_NL72X2,
        partition,
        slots=-(-model.experts // partition.ep),
        terms=terms,
    )

    room = kv_capacity_tokens(model, TRN3_NL72X2, partition, terms=terms)

    assert room == min(laid_out.kv_tokens_per_rank)


@pytest.mark.parametrize(("model", "partition"), CASES, ids=lambda case: getattr(case, "name", ""))
@pytest.mark.parametrize("drafter", [None, LLAMA_3_1_8B])
def test_what_drafts_leaves_the_room_that_the_layout_finds(model, partition, drafter):
    laid_out = lay_out(
        ModelMemory.with_drafts(model, by_layer=drafter is None, drafter=drafter, ep=partition.ep),
        TRN3_NL72X2,
        partition,
        slots=-(-model.experts // partition.ep),
    )

    room = kv_capacity_tokens(
        model, TRN3_NL72X2, partition, drafts_by_layer=drafter is None, drafter=drafter
    )

    assert room == min(laid_out.kv_tokens_per_rank)
    assert room < kv_capacity_tokens(model, TRN3_NL72X2, partition)


def test_a_model_that_does_not_fit_has_no_room():
    # 235 billion parameters in two bytes each are more than the 144 GiB of one chip.
    partition = Partition(chips=1, ep=1, lnc=2)

    room = kv_capacity_tokens(QWEN3_235B_A22B, TRN3_NL72X2, partition)

    assert room <= 0
    with pytest.raises(HbmExhausted):
        lay_out(
            ModelMemory.of(QWEN3_235B_A22B, head_groups=QWEN3_235B_A22B.heads),
            TRN3_NL72X2,
            partition,
            slots=QWEN3_235B_A22B.experts,
        )


def test_half_as_wide_a_cache_holds_twice_the_tokens():
    partition = Partition(chips=1, ep=1, lnc=2)
    narrow = replace(LLAMA_3_1_8B, kv_bytes_per_element=1)

    wide_tokens = kv_capacity_tokens(LLAMA_3_1_8B, TRN3_NL72X2, partition)

    assert kv_capacity_tokens(narrow, TRN3_NL72X2, partition) in (
        2 * wide_tokens,
        2 * wide_tokens + 1,
    )
