import numpy as np
import pytest

from emulator.fabric.all_reduce import RankAllReduce
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2

SYSTEM = TRN3_NL72X2  # 4 chips a tray, 72 a rack; 512, 512 and 128 bytes/ns; 1,000 ns a hop


def ranks(tp: int, chips: list[int]) -> RankAllReduce:
    return RankAllReduce(SYSTEM, tp=tp, physical=np.array(chips, dtype=np.int64))


def test_four_chips_of_a_tray_by_hand() -> None:
    collective = ranks(4, [0, 1, 2, 3])
    payload = np.array([1_024_000.0])

    # three quarters of 1,024,000 bytes at 512 a ns; a start of 1,300 ns and one hop
    assert collective.moving_ns(payload).tolist() == [1_500]
    assert collective.all_gather_ns(payload).tolist() == [1_500 + 2_300]
    assert collective.all_reduce_ns(payload).tolist() == [2 * 3_800]


def test_each_rank_is_as_slow_as_the_farthest_tier_between_its_chips() -> None:
    # two chips of one tray, of two trays, of two racks
    collective = ranks(2, [0, 1, 3, 4, 71, 72])
    payload = np.full(3, 1_024.0)

    assert collective.all_gather_ns(payload).tolist() == [
        1 + 1_300 + 1_000,
        1 + 1_300 + 3_000,
        4 + 1_300 + 4_000,
    ]


def test_a_rank_of_one_chip_and_a_rank_without_tokens_wait_for_nothing() -> None:
    assert ranks(1, [0, 100]).all_reduce_ns(np.array([1e9, 1e9])).tolist() == [0, 0]
    assert ranks(2, [0, 1, 2, 3]).all_reduce_ns(np.array([0.0, 1_024.0])).tolist() == [0, 4_602]


def test_chips_that_are_no_whole_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="3 chips are not whole ranks of 2"):
        ranks(2, [0, 1, 2])
