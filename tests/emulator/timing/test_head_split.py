import pytest

from emulator.specs.catalog.deepseek_v3 import DEEPSEEK_V3
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.timing.head_split import head_split


@pytest.mark.parametrize(
    ("tp", "cores", "query_share", "kv_share"),
    [
        (1, 1, 1, 1),
        (1, 4, 1, 1),  # one of 4 key heads on each core
        (1, 8, 1, 2),  # two cores have each key head
        (2, 4, 1 / 2, 1),  # 4 of 8 cores: every key head again
        (4, 1, 1 / 4, 1 / 4),
        (8, 4, 1 / 8, 1),
        (16, 4, 4 / 32, 1),  # 64 cores for 32 query heads: half of them pad
    ],
)
def test_thirty_two_query_and_four_key_heads_by_hand(
    tp: int, cores: int, query_share: float, kv_share: float
) -> None:
    split = head_split(QWEN3_30B_A3B, tp=tp, cores=cores)

    assert split.query_share == query_share
    assert split.kv_share == kv_share
    assert split.column_share == 1 / tp


def test_heads_of_a_latent_divide_as_others() -> None:
    assert head_split(DEEPSEEK_V3, tp=4, cores=8).query_share == 1 / 4
