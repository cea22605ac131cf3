from dataclasses import replace

import pytest

from emulator.memory.chip_contents import HbmTerms, core_needs, kv_tokens_that_fit
from emulator.memory.hbm_layout import smallest_partition
from emulator.memory.lnc import core_map
from emulator.memory.model_memory import ModelMemory
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.specs.tensor_group import TensorGroup, TensorSplit
from emulator.units import GB, GIB, MB

NO_RESERVE = HbmTerms(activation_bytes=0, collective_bytes=0)
BARE = ModelMemory(
    name="m",
    groups=(),
    heads=4,
    kv_heads=4,
    cached_heads=4,
    head_groups=4,
    kv_bytes_per_token=4_000,
    experts=0,
)


def held(memory: ModelMemory, *, lnc: int, terms: HbmTerms = NO_RESERVE) -> dict[str, int]:
    """What each logical core of a lone chip holds, by owner."""
    needs = core_needs(memory, core_map(TRAINIUM3, lnc), tp=1, slots=0, terms=terms)
    return {str(owner): on_core for owner, on_core in needs.owners}


def test_each_physical_core_has_its_microcode_whatever_lnc_is() -> None:
    assert [held(BARE, lnc=lnc) for lnc in (1, 2, 8)] == [
        {"microcode": 96 * MB},
        {"microcode": 2 * 96 * MB},
        {"microcode": 8 * 96 * MB},
    ]


def test_the_reserves_are_4_gb_of_a_chip_spread_over_its_cores() -> None:
    terms = HbmTerms()

    assert terms.activation_bytes + terms.collective_bytes == 4 * GB
    assert held(BARE, lnc=2, terms=terms) == {
        "microcode": 192 * MB,
        "activations": 3 * GB // 4,
        "collectives": GB // 4,
    }


def test_tokens_are_counted_for_the_cores_that_share_a_stack() -> None:
    # One KV head of 1,000 bytes a token on each core, two cores of LNC=1 on a stack.
    for lnc, in_region in ((1, 2_000), (2, 1_000), (8, 4_000)):
        cores = core_map(TRAINIUM3, lnc)
        needs = core_needs(BARE, cores, tp=1, slots=0, terms=NO_RESERVE)
        microcode = 96 * MB * (8 if lnc == 8 else 2)
        left = cores.region_bytes - microcode
        assert kv_tokens_that_fit(needs, cores, NO_RESERVE) == left // in_region

        half = replace(NO_RESERVE, utilization=0.5)
        left = cores.region_bytes // 2 - microcode
        assert kv_tokens_that_fit(needs, cores, half) == left // in_region


def test_a_model_that_is_too_large_has_room_for_less_than_no_token() -> None:
    rows = TensorGroup(name="rows", split=TensorSplit.WHOLE, copy_bytes=4 * 36 * GIB)
    cores = core_map(TRAINIUM3, 2)
    needs = core_needs(replace(BARE, groups=(rows,)), cores, tp=1, slots=0, terms=NO_RESERVE)

    assert kv_tokens_that_fit(needs, cores, NO_RESERVE) < 0


def test_a_catalog_model_is_divided_by_its_own_heads() -> None:
    qwen = ModelMemory.of(MODELS["qwen3-30b-a3b"])
    assert (qwen.heads, qwen.kv_heads, qwen.cached_heads, qwen.head_groups) == (32, 4, 4, 4)
    assert (qwen.kv_bytes_per_token, qwen.experts) == (98_304, 128)
    assert ModelMemory.of(MODELS["qwen3-30b-a3b"], head_groups=32).head_groups == 32


def test_a_latent_is_one_cached_head() -> None:
    deepseek = ModelMemory.of(MODELS["deepseek-v3"])

    assert (deepseek.heads, deepseek.cached_heads) == (128, 1)
    assert deepseek.kv_bytes_per_token == 61 * 576 * 2
    needs = core_needs(deepseek, core_map(TRAINIUM3, 1), tp=4, slots=1, terms=NO_RESERVE)
    assert needs.kv_token_bytes == deepseek.kv_bytes_per_token


def test_the_pool_keeps_every_token_of_layers_with_a_window_too() -> None:
    gpt_oss = MODELS["gpt-oss-120b"]  # 36 layers, every second one with a window of 128 tokens
    per_layer = 2 * 8 * 64 * 2  # keys and values, heads, head size, BF16
    assert ModelMemory.of(gpt_oss).kv_bytes_per_token == 36 * per_layer


@pytest.mark.parametrize("name", MODELS)
def test_every_catalog_model_fits_some_partition_with_one_whole_context(name: str) -> None:
    model = MODELS[name]
    partition = smallest_partition(
        ModelMemory.of(model, head_groups=model.heads),
        TRN3_NL72X2,
        Partition(chips=1, ep=1),
        redundant_slots=0,
        terms=HbmTerms(utilization=0.92, least_kv_tokens=model.max_context_tokens),
    )

    assert partition is not None
    # Repetition and padding come on top of the weights, so fewer chips could not hold them.
    assert partition.chips >= model.weight_bytes / TRAINIUM3.hbm_bytes
